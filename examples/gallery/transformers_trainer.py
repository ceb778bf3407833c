"""The same training with the Trainer of Transformers.

`hasten profile` and `hasten tune` take this file as it is. The callback is another way:
it watches the training from inside.
"""

import sys
import tempfile
from typing import Any

import torch
from tones import Tones, make_model
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the usual name
from transformers import Trainer, TrainingArguments

from hasten.integrations.transformers import HastenCallback


class ToneClassifier(nn.Module):
    """The model, in the form that the Trainer asks for: it returns its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def forward(
        self, recordings: torch.Tensor, labels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the loss and the scores of a batch."""
        scores = self.model(recordings)
        return {"loss": F.cross_entropy(scores, labels), "logits": scores}


def collate(samples: list[tuple[torch.Tensor, int]]) -> dict[str, Any]:
    """Make a batch, by the names of the arguments of `forward`."""
    recordings, labels = zip(*samples, strict=True)
    return {"recordings": torch.stack(recordings), "labels": torch.tensor(labels)}


updates = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
watch = HastenCallback()  # HastenCallback(plan="hasten.toml") trains under a plan
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        max_steps=updates,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    Trainer(
        model=ToneClassifier(),
        args=arguments,
        train_dataset=Tones(8192),
        data_collator=collate,
        callbacks=[watch],
    ).train()
print(watch.summary())
