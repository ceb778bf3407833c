"""Compare the cost of checkpoints: Hasten, torch.save, torch's distributed checkpoints, and Lightning's plugin."""
