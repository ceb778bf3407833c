"""The same training with Lightning.

`hasten profile` and `hasten tune` take this file as it is. The callback is another way:
it watches the training from inside.
"""

import sys

import lightning
import torch
from tones import Tones, make_model
from torch.nn import functional as F  # noqa: N812 - the usual name
from torch.utils.data import DataLoader

from hasten.integrations.lightning import HastenCallback


class ToneClassifier(lightning.LightningModule):
    """The model with its loss and optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch."""
        recordings, labels = batch
        return F.cross_entropy(self.model(recordings), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


updates = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
watch = HastenCallback()  # HastenCallback(plan="hasten.toml") trains under a plan
trainer = lightning.Trainer(
    max_steps=updates,
    accelerator="cpu",
    callbacks=[watch],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(ToneClassifier(), DataLoader(Tones(8192), batch_size=32, shuffle=True))
print(watch.summary())
