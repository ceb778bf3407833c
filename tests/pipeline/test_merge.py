"""Weights are averaged exactly, and adapters combined to the sum of what they add."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hasten.core.errors import CorruptError
from hasten.pipeline.description import PipelineError
from hasten.pipeline.merge import combine_adapters, merge_files


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_weights_are_averaged_in_the_kind_of_file_of_the_branches(tmp_path: Path, ending: str) -> None:
    states = [{"w": torch.full((2, 3), value), "steps": torch.tensor(7)} for value in (1.0, 3.0)]
    for name, state in zip("ab", states, strict=True):
        path = tmp_path / f"{name}.{ending}"
        save_file(state, path) if ending == "safetensors" else torch.save(state, path)
    target = tmp_path / f"merged.{ending}"
    merge_files([tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"], target, [0.25, 0.75], how="average")
    found = load_file(target) if ending == "safetensors" else torch.load(target, weights_only=True)
    assert torch.equal(found["w"], torch.full((2, 3), 2.5))
    assert found["steps"] == 7


def test_adapters_add_up() -> None:
    generator = torch.Generator().manual_seed(0)
    states = [
        {
            "x.lora_A.weight": torch.randn(rank, 5, generator=generator),
            "x.lora_B.weight": torch.randn(4, rank, generator=generator),
        }
        for rank in (2, 3)
    ]
    merged = combine_adapters(states, [0.25, 0.75])
    assert merged["x.lora_A.weight"].shape == (5, 5)
    parts = [
        share * state["x.lora_B.weight"] @ state["x.lora_A.weight"]
        for share, state in zip((0.25, 0.75), states, strict=True)
    ]
    want = torch.stack(parts).sum(0)
    assert torch.allclose(merged["x.lora_B.weight"] @ merged["x.lora_A.weight"], want, atol=1e-6)
    with pytest.raises(PipelineError, match="no pairs of adapters"):
        combine_adapters([{"w": torch.zeros(2)}] * 2, [0.5, 0.5])


def test_branches_that_cannot_be_merged_are_refused(tmp_path: Path) -> None:
    for name, state in (("a", {"w": torch.zeros(2)}), ("b", {"v": torch.zeros(2)}), ("c", {"w": torch.zeros(3)})):
        torch.save(state, tmp_path / name)
    target = tmp_path / "merged"
    for other, words in (("b", "differ in weights, such as v"), ("c", "other shapes")):
        with pytest.raises(PipelineError, match=words):
            merge_files([tmp_path / "a", tmp_path / other], target, [0.5, 0.5], how="average")
    (tmp_path / "b").write_bytes(b"nonsense")
    with pytest.raises(CorruptError, match="cannot be read as weights"):
        merge_files([tmp_path / "a", tmp_path / "b"], target, [0.5, 0.5], how="average")
    assert not target.exists()
