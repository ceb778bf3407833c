"""Accelerate: a custom loop with gradient accumulation, clipping, an evaluation and saved states."""

from __future__ import annotations

import argparse
import tempfile
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from common import Rows, fingerprint, make_model
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow", default="")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--precision", default="no")
    options = parser.parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=options.accumulate, mixed_precision=options.precision)
    set_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    rows = Slow(0.002 if options.slow == "data" else 0.0)
    model, optimizer, schedule, loader, held_out = accelerator.prepare(
        model, optimizer, schedule, DataLoader(rows, batch_size=8, shuffle=True), DataLoader(Rows(16), batch_size=8)
    )
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.epochs):
            model.train()
            for x, y in loader:
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(x), y)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                losses.append(loss.item())
            model.eval()
            right = 0
            for x, y in held_out:
                with torch.no_grad():
                    answers, wanted = accelerator.gather_for_metrics((model(x).argmax(1), y))
                if options.slow == "valid":
                    time.sleep(0.01)
                right += (answers == wanted).sum().item()
            accelerator.save_state(folder)
            if options.slow == "saves":
                for _ in range(10):
                    accelerator.save_state(folder)
    print([round(loss, 6) for loss in losses[-4:]], right)
    print(fingerprint(accelerator.unwrap_model(model)))


if __name__ == "__main__":
    main()
