"""Transformers: a Trainer with a tiny GPT-2 of random weights, an evaluation and checkpoints."""

from __future__ import annotations

import argparse
import tempfile
import time

import torch
from common import fingerprint
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, set_seed


class Tokens(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, num: int, wait_s: float = 0.0) -> None:
        self.rows = torch.randint(0, 32, (num, 8), generator=torch.Generator().manual_seed(num))
        self.wait_s = wait_s

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self.wait_s:
            time.sleep(self.wait_s)
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Patient(Trainer):
    slow = ""

    def prediction_step(self, *args, **kwargs):
        if self.slow == "valid":
            time.sleep(0.02)
        return super().prediction_step(*args, **kwargs)

    def save_model(self, *args, **kwargs):
        if self.slow == "saves":
            time.sleep(0.1)
        return super().save_model(*args, **kwargs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow", default="")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--precision", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    set_seed(0)
    config = GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Patient(
            model=GPT2LMHeadModel(config),
            args=TrainingArguments(
                output_dir=folder, num_train_epochs=options.epochs, per_device_train_batch_size=8,
                gradient_accumulation_steps=options.accumulate, bf16=options.precision == "bf16", learning_rate=1e-2,
                eval_strategy="epoch", save_strategy="steps", save_steps=2 if options.slow == "saves" else 4,
                save_total_limit=1, logging_steps=2, report_to="none", use_cpu=True, disable_tqdm=True,
            ),
            train_dataset=Tokens(48, 0.002 if options.slow == "data" else 0.0),
            eval_dataset=Tokens(16),
        )  # fmt: skip
        trainer.slow = options.slow
        trainer.remove_callback(PrinterCallback)  # its output contains times
        trainer.train()
    kept = ("loss", "eval_loss", "grad_norm", "step")
    print([{name: entry[name] for name in kept if name in entry} for entry in trainer.state.log_history[-4:]])
    print(fingerprint(trainer.model))


if __name__ == "__main__":
    main()
