"""Test that the converted dataset returns the same samples, and is shared if a folder is kept."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from hasten.core.batch import content
from hasten.core.errors import JobError
from hasten.data.rows import RowLayout, UnlikeError
from hasten.optimizations.converted_dataset import ConvertedDataset
from hasten.optimizations.parts.sample_caching import FOLDER_VARIABLE, disk_words, quoted_source
from hasten.profile.probes import data_path
from hasten.script.plan.reach import why_beyond
from tests.optimizations.contract import Prepared, facts, make_loop, run

EQUAL_LAYOUTS: list[Any] = [
    {
        "x": torch.arange(6.0).reshape(2, 3) * n,
        "y": n,
        "name": f"é{n}",
        "on": n % 2 == 0,
        "p": (n / 3, [np.arange(n, n + 4)]),
    }
    for n in range(5)
]
DIFFERENT: dict[str, list[Any]] = {
    "lengths": [torch.arange(n) for n in range(5)],
    "keys": [{"a": 1}, {"b": 1}],
    "none": [None, None],
    "sixteen bits": [torch.zeros(3, dtype=torch.bfloat16)] * 2,
    "other memory": [torch.zeros(1, 3, 4, 4).to(memory_format=torch.channels_last)] * 2,
    "bytes of numbers": [np.float32(1.5), np.float32(2.5)],
    "empty": [{}, {}],
}


def back(samples: list[Any]) -> list[Any]:
    layout = RowLayout.of(samples)
    rows = layout.rows(samples)
    return layout.samples(rows, len(samples))


def test_equal_layouts_are_stored_in_columns() -> None:
    layout = RowLayout.of(EQUAL_LAYOUTS)
    rows = layout.rows(EQUAL_LAYOUTS)
    assert rows["c0"].shape == (5, 2, 3)
    assert [content(sample) for sample in layout.samples(rows, 5)] == [content(sample) for sample in EQUAL_LAYOUTS]


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_layouts_are_stored_as_records(name: str) -> None:
    samples = DIFFERENT[name]
    assert RowLayout.of(samples).tree is None
    assert [content(sample) for sample in back(samples)] == [content(sample) for sample in samples]


def test_a_sample_that_does_not_suit_is_found() -> None:
    layout = RowLayout.of([torch.zeros(3), torch.ones(3)])
    with pytest.raises(UnlikeError):
        layout.rows([torch.zeros(3), torch.zeros(4)])
    with pytest.raises(TypeError, match="is not plain data"):
        RowLayout.of([object()]).rows([object()])


def test_a_dataset_too_large_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    folder = tmp_path / "my photos"
    folder.mkdir()

    class OfFolder(list[Any]):
        def __init__(self) -> None:
            super().__init__([0, 1])
            self.root = f"{folder}/"

    path = data_path(Subset(OfFolder(), [0]))  # type: ignore[arg-type]  # it has the methods of a dataset
    fit = ConvertedDataset.fit(facts(epoch_s=1e6, sample_bytes=3 * 2**20, job={"num_samples": 1000, "data_path": path}))
    command = f"`hasten data convert '{folder}' '{folder}'.store` (about 2.9 GiB of disk"
    assert command in fit.reason
    assert command in why_beyond(
        ConvertedDataset.card, source=quoted_source(path), need=f" ({disk_words(3000 * 2**20)} of disk)"
    )
    assert "hasten data convert SOURCE SOURCE.store`, and" in why_beyond(ConvertedDataset.card)


@pytest.mark.parametrize("value", ["", "no such folder", "a" * 10_000, "a\0b", 7, None])
def test_other_values_are_not_used_as_a_path(value: Any) -> None:
    class Texts:
        path = "of the class, not of the dataset"

        def __init__(self) -> None:
            self.file = value

    assert not data_path(Texts())


class Ragged(Prepared):
    """Samples of different lengths, after many of equal length."""

    def deterministic_transform(self, sample: Any) -> Any:
        found = super().deterministic_transform(sample)
        return {**found, "extra": torch.zeros(1 + (float(found["y"]) > 4.2))}

    def collate(self, samples: list[Any]) -> Any:
        return super().collate([{name: value for name, value in sample.items() if name != "extra"} for sample in samples])


@pytest.mark.parametrize("job", [Prepared, Ragged])
def test_losses_are_the_same(job: type[Prepared]) -> None:
    assert run(job(), 9, ConvertedDataset()) == run(job(), 9)


def test_a_kept_folder_serves_the_next_process_and_a_temporary_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    first = run(Prepared(), 5, ConvertedDataset())
    (folder,) = tmp_path.iterdir()
    written = (folder / "columns" / "manifest.json").stat().st_mtime_ns
    assert run(Prepared(), 5, ConvertedDataset()) == first
    assert (folder / "columns" / "manifest.json").stat().st_mtime_ns == written
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    loop = make_loop(Prepared(), ConvertedDataset())
    assert list((tmp_path / "temporary").iterdir())
    loop.live.undo_all()
    assert not list((tmp_path / "temporary").iterdir())


def test_a_preparation_that_is_not_deterministic_is_found() -> None:
    counted = itertools.count()

    class Counts(Prepared):
        def deterministic_transform(self, sample: Any) -> Any:
            return {**super().deterministic_transform(sample), "y": torch.tensor(float(next(counted)))}

    with pytest.raises(JobError, match="differs from its copy in the store"):
        run(Counts(), 3, ConvertedDataset())
