"""Frameworks accept a stream as an iterable dataset, and a store as a map-style dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, WeightedRandomSampler

from hasten.data import Store, StoreWriter, Stream


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path: Path = tmp_path_factory.mktemp("interoperation") / "store"
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    with StoreWriter(path, block_rows=16) as writer:
        writer.write({"x": x, "labels": x.sum(1, keepdims=True), "id": np.arange(200)})
    return Store(path)


class Linear(nn.Module):
    """Learn the sum of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        """Map [batch, 4] to a loss."""
        found = self.layer(x)
        return {"loss": nn.functional.mse_loss(found, labels), "logits": found}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [None, 0, 2])
def test_lightning_takes_a_stream(store: Store, tmp_path: Path, workers: Any) -> None:
    lightning = pytest.importorskip("lightning")
    seen: list[list[int]] = []

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Linear()

        def training_step(self, batch: Any) -> Any:
            seen.append(batch["id"].tolist())
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    stream = Stream(store, batch_size=16, form="torch", seed=3)
    loader = stream if workers is None else DataLoader(stream, batch_size=None, num_workers=workers)
    trainer = lightning.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu"
    )
    trainer.fit(Module(), loader)
    assert seen == [batch["id"].tolist() for batch in Stream(store, batch_size=16, form="torch", seed=3)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_trainer_of_hugging_face_takes_its_samples(store: Store, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=10, per_device_train_batch_size=16, report_to=[], save_strategy="no",
        use_cpu=True, learning_rate=0.1, disable_tqdm=True,
    )  # fmt: skip
    model = Linear()
    before = model.layer.weight.detach().clone()
    stream = Stream(store, batch_size=16, form="torch")
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=stream.samples())
    trainer.train()
    assert trainer.state.global_step == 10
    assert not torch.equal(before, model.layer.weight)


def test_samplers_draw_from_a_store(store: Store) -> None:

    for sampler in (RandomSampler(store), WeightedRandomSampler([1.0] * len(store), 50), range(20)):
        found = [
            int(n)
            for batch in DataLoader(store, batch_size=8, sampler=sampler, collate_fn=list)
            for n in [r["id"] for r in batch]
        ]
        assert len(found) == len(sampler)
        assert set(found) <= set(range(200))
    batches = DataLoader(store, batch_sampler=BatchSampler(range(10), 4, drop_last=True), collate_fn=list)
    assert [[int(row["id"]) for row in batch] for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_samples_come_one_by_one(store: Store) -> None:
    samples = list(Stream(store, batch_size=16, form="torch", shuffle=False).samples())
    assert [int(sample["id"]) for sample in samples] == list(range(200))
    assert samples[0]["x"].shape == (4,)
