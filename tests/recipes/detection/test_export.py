"""ONNX export of a detector: the file reproduces the model for any batch size, or it is not written."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hasten.core.errors import HastenError, MachineError
from hasten.recipes import onnx_file
from hasten.recipes.detection.average import Averaged
from hasten.recipes.detection.export import TOLERANCES, export_onnx
from hasten.recipes.detection.model import SHAPES, Detector
from hasten.recipes.onnx_file import Run, runner_of
from tests.recipes.detection.shapes import SIDE, job_on, write_pictures

pytest.importorskip("onnxscript")
SIZE = 64
NAMES = list(TOLERANCES)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Ignore warnings about deprecated parts of torch and Python that torch's exporter itself uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def trained() -> Averaged:
    """Return a model whose average differs from its live part, with non-default statistics."""
    torch.manual_seed(0)
    averaged = Averaged(Detector(2, SHAPES["nano"])).train()
    for _ in range(3):
        averaged(torch.rand(4, 3, SIZE, SIZE))
        averaged.update()
    with torch.no_grad():
        for parameter in averaged.live.parameters():
            parameter.add_(1.0)
    return averaged


@pytest.mark.slow
def test_the_file_gives_what_the_average_gives_for_any_batch_size(tmp_path: Path) -> None:
    import onnx

    model, path = trained(), tmp_path / "detector.onnx"
    differences = export_onnx(model, path, size=SIZE, classes=("square", "disc"))
    assert all(differences[name] <= limit for name, limit in TOLERANCES.items())
    images = np.random.default_rng(1).random((5, 3, SIZE, SIZE), dtype=np.float32)
    boxes, scores = runner_of(path, NAMES)(images)
    with torch.inference_mode():
        expected = model.eval()(torch.from_numpy(images))
    np.testing.assert_allclose(boxes, expected.boxes.numpy(), atol=0.05)
    np.testing.assert_allclose(scores, expected.scores.numpy(), atol=1e-3)
    noted = {entry.key: entry.value for entry in onnx.load(str(path)).metadata_props}
    assert json.loads(noted["classes"]) == ["square", "disc"]
    assert noted["size"] == str(SIZE)
    assert [path.name for path in tmp_path.iterdir()] == ["detector.onnx"]


@pytest.mark.long
def test_a_file_that_gives_other_numbers_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "detector.onnx"
    path.write_text("the good one of yesterday", encoding="utf-8")

    def off_by_a_pixel(made: Path, names: list[str]) -> Run:
        run = runner_of(made, names)
        return lambda images: [run(images)[0] + 1.0, run(images)[1]]

    monkeypatch.setattr(onnx_file, "runner_of", off_by_a_pixel)
    with pytest.raises(HastenError, match=r"boxes by 1 \(allowed: 0.05\)"):
        export_onnx(trained(), path, size=SIZE)
    assert path.read_text(encoding="utf-8") == "the good one of yesterday"
    assert [path.name for path in tmp_path.iterdir()] == ["detector.onnx"]


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot write"):
        export_onnx(trained(), tmp_path / "nowhere" / "detector.onnx", size=SIZE)


@pytest.mark.long
def test_a_trained_job_writes_its_average(tmp_path: Path) -> None:
    job = job_on(write_pictures(tmp_path / "images", 4))
    model = job.model()
    with torch.no_grad():
        for parameter in model.get_submodule("live").parameters():
            parameter.add_(1.0)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    job.export(str(tmp_path / "model.pt"), str(tmp_path / "shapes.onnx"))
    images = np.zeros((2, 3, SIDE, SIDE), np.float32)
    _, scores = runner_of(tmp_path / "shapes.onnx", NAMES)(images)
    with torch.inference_mode():
        expected = model.eval()(torch.from_numpy(images))
    np.testing.assert_allclose(scores, expected.scores.numpy(), atol=1e-3)
