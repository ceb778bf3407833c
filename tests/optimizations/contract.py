"""The test cases of optimizations: small jobs they apply to, facts they accept, and facts they must refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import hasten
from hasten.core.facts import Facts, JobFacts
from hasten.core.job import Job
from hasten.core.machine import Machine, Reading
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.train.build import build
from hasten.train.loop import Loop

CPU = torch.device("cpu")
GIB = 2**30


# Jobs.


class Images(Job):
    """Convolutions over 14 small images, in batches of 4. The last batch has 2."""

    batch_size = 4
    epochs = 3

    def model(self) -> nn.Module:
        layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5))

    def train_data(self) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(1)
        return TensorDataset(torch.randn(14, 3, 12, 12, generator=generator), torch.arange(14) % 5)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


class ImagesZeroed(Images):
    """Gradients filled with zeros between updates."""

    zero_grad_to_none = False


class Ragged(Job):
    """Sequences of 1 to 20 tokens, always padded to 24, with a loss per token."""

    batch_size = 4
    epochs = 3
    quality = hasten.Quality(margin=0.1)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 32))

    def train_data(self) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(2)
        lengths = [int(n) for n in torch.randint(1, 21, (30,), generator=generator)]
        texts: Any = [torch.randint(1, 32, (n,), generator=generator) for n in lengths]
        return texts  # type: ignore[no-any-return]

    def valid_data(self) -> Dataset[Any] | None:
        return self.train_data()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    def deterministic_transform(self, sample: Any) -> Any:
        return sample

    def length(self, sample: Any) -> int:
        return len(sample)

    def collate(self, samples: list[Any]) -> Any:
        return torch.stack([nn.functional.pad(sample, (0, 24 - len(sample))) for sample in samples])

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
        each = nn.functional.cross_entropy(model(batch).view(-1, 32), batch.view(-1), ignore_index=0, reduction="sum")
        return hasten.Loss(each, (batch != 0).sum())


class RaggedPacked(Ragged):
    """The same job, which can also be packed."""

    def collate_packed(self, samples: list[Any]) -> Any:
        return torch.cat(samples)[None]


class Block(nn.Module):
    """Attention and a feed-forward part, with running statistics."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(16, 48), nn.BatchNorm1d(16)
        self.feed = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(dropout), nn.Linear(64, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, time, 16] to the same shape."""
        q, k, v = (part.unflatten(2, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2))
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.norm(x.transpose(1, 2)).transpose(1, 2)
        out: torch.Tensor = x + self.feed(x)
        return out


class Blocks(nn.Module):
    """Three blocks of one class."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(4, 16), nn.Linear(16, 1)
        self.blocks = nn.ModuleList([Block(dropout) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, time, 4] to [batch, 1]."""
        x = self.inward(x)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.outward(x.mean(dim=1))
        return out


class Attention(Job):
    """A transformer without dropout."""

    batch_size = 4
    epochs = 3
    dropout = 0.0

    def model(self) -> nn.Module:
        return Blocks(self.dropout)

    def train_data(self) -> Dataset[Any]:
        x = torch.randn(14, 9, 4, generator=torch.Generator().manual_seed(4))
        return TensorDataset(x, x.mean(dim=(1, 2))[:, None])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
        return nn.functional.mse_loss(model(batch[0]), batch[1])


class AttentionDropout(Attention):
    """The same job with dropout."""

    dropout = 0.3


class Prepared(Job):
    """A deterministic transform, then a random one."""

    batch_size = 4
    epochs = 3

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))

    def train_data(self) -> Dataset[Any]:
        return TensorDataset(torch.randn(14, 6, generator=torch.Generator().manual_seed(5)))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05)

    def deterministic_transform(self, sample: Any) -> Any:
        return {"x": sample[0].sqrt().nan_to_num(), "y": sample[0].sum(), "name": "sample"}

    def random_transform(self, sample: Any) -> Any:
        return {**sample, "x": sample["x"] + 0.1 * torch.rand(6)}

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
        return nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])


class Rows(Dataset[Any]):
    """Rows of a table, read one by one or several per call."""

    def __init__(self) -> None:
        self.table = torch.randn(14, 6, generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (self.table[index],)

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor]]:
        """Gather the rows at once."""
        return [(row,) for row in self.table[indices]]


class PreparedRows(Prepared):
    """The same job with a table that reads several rows per call."""

    def train_data(self) -> Dataset[Any]:
        return Rows()


# Facts.


def machine(cpu_flags: frozenset[str] = frozenset(), **changes: Any) -> Machine:
    """Return a machine with four cores and all features. `changes` are values of readings."""
    values: dict[str, Any] = {
        "cores": 4, "memory_limit_bytes": 8 * GIB, "cpu_model": "test", "accelerators": (), "bfloat16": True,
        "float16": False, "torch_build": "cpu", "threads": 4, "cxx_compiler": "/usr/bin/g++", "shared_memory_bytes": GIB,
        "allocators": (), "c_library": "glibc 2.36", "openmp": "/usr/lib/libgomp.so.1",
    }  # fmt: skip
    readings = {name: Reading(value, f"test says {value}") for name, value in {**values, **changes}.items()}
    return Machine(cpu_flags=cpu_flags, torch_version="2.x", python_version="3.11", system="test", **readings)


PHASES = {"data": 0.3, "transfer": 0.0, "forward": 0.2, "backward": 0.3, "optimizer": 0.15, "logging": 0.05}
GOOD: dict[str, Any] = {
    "step_ms": 10.0,
    "phase_frac": PHASES,
    "ceilings": {"input": 1.4, "logging": 1.1, "padding": 1.5},
    "op_frac": {"_scaled_dot_product_flash_attention_for_cpu": 0.2, "convolution": 0.3},
    "op_counts": {"scaled_dot_product_attention": 3, "_scaled_dot_product_flash_attention_for_cpu": 3},
    "form_gains": {"fused": 3.0, "foreach": 2.0, "flushed": 2.0},
    "collecting_frac": 0.05,
    "padding_frac": 0.3,
    "excess_padding_frac": 0.0,
    "sample_bytes": 1000,
    "load_frac": 0.8,
    "peak_memory_bytes": GIB,
    "memory_limit_bytes": 8 * GIB,
}
GOOD_JOB: dict[str, Any] = {
    "optimizer_class": "AdamW", "num_params": 1000, "num_param_tensors": 10, "repeated_blocks": 3,
    "module_counts": {"Conv2d": 2, "Linear": 2}, "batch_size": 4, "num_samples": 100, "planned_updates": 100,
    "updates_per_epoch": 25, "has_length": True, "has_collate_packed": True, "has_quality": True,
    "has_deterministic_transform": True,
    "zero_grad_to_none": False,
}  # fmt: skip


def facts(*, job: dict[str, Any] | None = None, on: dict[str, Any] | None = None, **changes: Any) -> Facts:
    """Return facts that suit every optimization, with changes to the job, the machine (`on`) and the measurements."""
    return Facts(machine=machine(**(on or {})), job=JobFacts(**{**GOOD_JOB, **(job or {})}), **{**GOOD, **changes})


# Test cases, and helpers that run them.


@dataclass(frozen=True, kw_only=True)
class Case:
    """The test case of one optimization.

    Attributes:
        make: Creates the optimization with a setting that has an effect.
        job: A job on which it has an effect.
        facts: Facts that it accepts.
        refused: Facts that it refuses, each with a part of the reason.
        needs_gpu: Whether it needs a GPU. Without a CUDA device, tests that run it are skipped.
        needs_ranks: Whether it needs several ranks. `test_ranks.py` tests its part of the contract with real ranks.
        leaves_out: Number of samples per epoch that it omits.
        other_weights: Whether it trains other weights than the job, so that its saved start is not a plain start.
        needs_package: An optional package that it needs. If it is not installed, tests that run it are skipped.
    """

    make: Callable[[], Optimization]
    job: type[Job]
    facts: Facts
    refused: tuple[tuple[Facts, str], ...]
    needs_gpu: bool = False
    needs_ranks: bool = False
    leaves_out: int = 0
    other_weights: bool = False
    needs_package: str = ""

    @property
    def device(self) -> torch.device:
        """Return the device of its job. Skips the test if the device or a package is missing."""
        if self.needs_package and find_spec(self.needs_package) is None:
            pytest.skip(f"needs the package {self.needs_package}")
        if self.needs_gpu and not torch.cuda.is_available():
            pytest.skip("needs an NVIDIA GPU")
        return torch.device("cuda") if self.needs_gpu else CPU


def run(job: Job, updates: int, *optimizations: Optimization, device: torch.device = CPU) -> list[float]:
    """Return the losses of a new run under these optimizations, and undo them afterwards."""
    loop = make_loop(job, *optimizations, device=device)
    try:
        loop.run(updates)
    finally:
        loop.close()
        loop.live.undo_all()
    return loop.losses


def make_loop(job: Job, *optimizations: Optimization, device: torch.device = CPU) -> Loop:
    """Return a loop at the start of a run under these optimizations."""
    return Loop(build(job, Plan(optimizations=optimizations), device=device))


def undone(loop: Loop) -> Loop:
    """Undo everything in the same live job, and return its loop at the start of a plain run."""
    loop.rewind()
    loop.live.undo_all()
    return Loop(loop.live)
