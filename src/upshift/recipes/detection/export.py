"""A trained detector as an ONNX file, kept only where it gives what the model gives.

The file takes `images`, float32 `[batch, 3, size, size]` from 0 to 1 (a letterboxed picture, RGB), with any batch size, and
gives `boxes`, float32 `[batch, anchors, 4]` (x1, y1, x2, y2 in pixels), and `scores`, float32 `[batch, anchors, classes]`.
What overlaps is not suppressed in it. The names of the classes and the size stand in its metadata.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from upshift.core.errors import MachineError, UpshiftError
from upshift.recipes.detection.model import Output

OPSET = 18
TOLERANCES: Mapping[str, float] = {"boxes": 0.05, "scores": 1e-3}
"""How far outputs may differ: in pixels, and in score. Both compute in float32, in another order."""
CHECKED_BATCHES = (1, 3)

Run = Callable[[npt.NDArray[np.float32]], Sequence[npt.NDArray[np.float32]]]


class Plain(nn.Module):
    """A detector that gives boxes and scores alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Boxes and scores of pictures."""
        output: Output = self.model(images)
        return output.boxes, output.scores


def export_onnx(model: nn.Module, path: Path, *, size: int, classes: Sequence[str] = ()) -> dict[str, float]:
    """Write the ONNX file, run it beside the model, and keep it where they agree.

    Args:
        model: A `Detector`, or its average: what `eval` mode calls is written. It is not changed.
        path: The file; replaced only by one that agrees.
        size: Side of the pictures in pixels.
        classes: Names, for the file's metadata.

    Returns:
        The largest difference seen of `boxes` (pixels) and of `scores`.

    Raises:
        MachineError: What is needed is not installed (`upshift[recipes]`), or the file cannot be written.
        UpshiftError: The file gives other numbers than the model; it was removed.
    """
    _check_installed()
    plain = Plain(_evaluated(model))
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}-", suffix=".onnx", dir=path.parent)
        os.close(number)
    except OSError as error:
        raise MachineError(f"{path} cannot be written ({error.strerror}): choose another place.") from error
    made = Path(name)
    try:
        _write(plain, made, size, classes)
        differences = _compare(plain, made, size)
        apart = [name for name, limit in TOLERANCES.items() if not differences[name] <= limit]
        if apart:
            told = ", ".join(f"{name} by {differences[name]:.3g} (allowed: {TOLERANCES[name]:g})" for name in apart)
            raise UpshiftError(
                f"The ONNX file does not give what the model gives: {told}. It was removed. Update torch and onnxscript, or "
                f"report it with the versions of both."
            )
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    return differences


def runner_of(path: Path) -> Run:
    """What runs an ONNX file here: onnxruntime where it is installed, else the reference implementation of ONNX.

    Raises:
        MachineError: Neither is installed.
    """
    if find_spec("onnxruntime") is not None:
        import onnxruntime  # noqa: PLC0415  optional

        session: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return lambda images: list(session.run(["boxes", "scores"], {"images": images}))
    _check_installed()
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415  an extra

    evaluator: Any = ReferenceEvaluator(str(path))
    return lambda images: list(evaluator.run(["boxes", "scores"], {"images": images}))


def _evaluated(model: nn.Module) -> nn.Module:
    """A copy of what `eval` mode calls, in float32 on the CPU."""
    inner = getattr(model, "average", model)
    return copy.deepcopy(inner).float().cpu().eval().requires_grad_(requires_grad=False)


def _check_installed() -> None:
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise MachineError(f"ONNX files need {' and '.join(missing)}, not installed here: pip install 'upshift[recipes]'")


def _write(plain: Plain, path: Path, size: int, classes: Sequence[str]) -> None:
    import onnx  # noqa: PLC0415  an extra

    batch = torch.export.Dim("batch", min=1)
    example = torch.zeros(2, 3, size, size)
    program: Any = torch.onnx.export(
        plain, (example,), dynamo=True, input_names=["images"], output_names=["boxes", "scores"],
        dynamic_shapes=({0: batch},), opset_version=OPSET, verbose=False,
    )  # fmt: skip
    proto = program.model_proto
    for key, value in {"classes": json.dumps(list(classes)), "size": str(size)}.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.save(proto, str(path))


def _compare(plain: Plain, path: Path, size: int) -> dict[str, float]:
    """The largest difference of each output, over batches of other sizes than the example's."""
    run = runner_of(path)
    differences = dict.fromkeys(TOLERANCES, 0.0)
    random = np.random.default_rng(0)
    for batch in CHECKED_BATCHES:
        images = random.random((batch, 3, size, size), dtype=np.float32)
        with torch.inference_mode():
            expected = plain(torch.from_numpy(images))
        for name, mine, other in zip(TOLERANCES, expected, run(images), strict=True):
            apart = np.abs(mine.numpy() - other)
            # NaN is no agreement: it must not vanish in a maximum.
            differences[name] = max(differences[name], float(apart.max()) if np.isfinite(apart).all() else float("inf"))
    return differences
