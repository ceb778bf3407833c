"""What a checkpoint costs a run: ours, torch.save, torch's distributed checkpoints, Lightning's plugin, in one run."""
