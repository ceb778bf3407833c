"""Lightning: a typical module with validation and checkpoints."""

from __future__ import annotations

import argparse
import tempfile
import time

import lightning.pytorch as pl
import torch
from common import Rows, fingerprint, make_model
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader


class Slow(Rows):
    def __init__(self, wait_s: float, num: int = 48) -> None:
        super().__init__(num)
        self.wait_s = wait_s

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.wait_s:
            time.sleep(self.wait_s)
        return super().__getitem__(index)


class Classifier(pl.LightningModule):
    def __init__(self, slow: str) -> None:
        super().__init__()
        self.net = make_model()
        self.slow = slow
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], _at: int) -> torch.Tensor:
        x, y = batch
        if self.slow == "loss":
            time.sleep(0.01)
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _at: int) -> None:
        if self.slow == "valid":
            time.sleep(0.01)
        self.log("right", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        if self.slow == "saves":
            time.sleep(0.05)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow", default="")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--precision", default="32-true")
    options = parser.parse_args()
    pl.seed_everything(0, verbose=False)
    model = Classifier(options.slow)
    rows = Slow(0.002 if options.slow == "data" else 0.0)
    with tempfile.TemporaryDirectory() as folder:
        saves = (
            ModelCheckpoint(dirpath=folder, every_n_train_steps=2) if options.slow == "saves" else ModelCheckpoint(folder)
        )
        trainer = pl.Trainer(
            accelerator="cpu", max_epochs=options.epochs, accumulate_grad_batches=options.accumulate, callbacks=[saves],
            precision=options.precision, logger=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, DataLoader(rows, batch_size=8, shuffle=True), DataLoader(Rows(16), batch_size=8))
    print([round(loss, 6) for loss in model.losses[-4:]], trainer.global_step, trainer.callback_metrics["right"].item())
    print(fingerprint(model))


if __name__ == "__main__":
    main()
