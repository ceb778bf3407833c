"""A trained network as an ONNX file, kept only where it gives what the network gives.

The file is written beside its place, run with random pictures in batches of other sizes than the one it was traced with, and
put in its place where every output agrees. What was there before stays until then.
"""

from __future__ import annotations

import copy
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

from hasten.core.errors import HastenError, MachineError

OPSET = 18
CHECKED_BATCHES = (1, 3)

Floats = npt.NDArray[np.float32]
Run = Callable[[Floats], Sequence[Floats]]


def write_onnx(
    network: nn.Module, path: Path, *, size: tuple[int, int], outputs: Mapping[str, float], metadata: Mapping[str, str]
) -> dict[str, float]:
    """Write the file, run it beside the network, and keep it where they agree.

    Args:
        network: Takes float32 `[batch, 3, height, width]` from 0 to 1 and gives a tuple of tensors. A copy is written, in
            float32, on the CPU and in eval mode.
        path: The file; replaced only by one that agrees.
        size: Height and width of the pictures.
        outputs: The names of what it gives, in their order, and how far each may differ.
        metadata: Noted in the file.

    Returns:
        The largest difference seen of each output.

    Raises:
        MachineError: What is needed is not installed (`hasten[recipes]`), or the file cannot be written.
        HastenError: The file gives other numbers than the network; it was removed.
    """
    _check_installed()
    plain = copy.deepcopy(network).float().cpu().eval().requires_grad_(requires_grad=False)
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}-", suffix=".onnx", dir=path.parent)
        os.close(number)
    except OSError as error:
        raise MachineError(f"{path} cannot be written ({error.strerror}): choose another place.") from error
    made = Path(name)
    try:
        _write(plain, made, size, list(outputs), metadata)
        differences = _compare(plain, made, size, list(outputs))
        apart = [name for name, limit in outputs.items() if not differences[name] <= limit]
        if apart:
            told = ", ".join(f"{name} by {differences[name]:.3g} (allowed: {outputs[name]:g})" for name in apart)
            raise HastenError(
                f"The ONNX file does not give what the model gives: {told}. It was removed. Update torch and onnxscript, or "
                f"report it with the versions of both."
            )
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    return differences


def runner_of(path: Path, outputs: Sequence[str]) -> Run:
    """What runs an ONNX file here: onnxruntime where it is installed, else the reference implementation of ONNX.

    Raises:
        MachineError: Neither is installed.
    """
    if find_spec("onnxruntime") is not None:
        import onnxruntime  # noqa: PLC0415  optional

        session: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return lambda images: list(session.run(list(outputs), {"images": images}))
    _check_installed()
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415  an extra

    evaluator: Any = ReferenceEvaluator(str(path))
    return lambda images: list(evaluator.run(list(outputs), {"images": images}))


def _check_installed() -> None:
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise MachineError(f"ONNX files need {' and '.join(missing)}, not installed here: pip install 'hasten[recipes]'")


def _write(plain: nn.Module, path: Path, size: tuple[int, int], outputs: list[str], metadata: Mapping[str, str]) -> None:
    import onnx  # noqa: PLC0415  an extra

    batch = torch.export.Dim("batch", min=1)
    program: Any = torch.onnx.export(
        plain, (torch.zeros(2, 3, *size),), dynamo=True, input_names=["images"], output_names=outputs,
        dynamic_shapes=({0: batch},), opset_version=OPSET, verbose=False,
    )  # fmt: skip
    proto = program.model_proto
    for key, value in metadata.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.save(proto, str(path))


def _compare(plain: nn.Module, path: Path, size: tuple[int, int], outputs: list[str]) -> dict[str, float]:
    """The largest difference of each output, over batches of other sizes than the example's."""
    run = runner_of(path, outputs)
    differences = dict.fromkeys(outputs, 0.0)
    random = np.random.default_rng(0)
    for batch in CHECKED_BATCHES:
        images = random.random((batch, 3, *size), dtype=np.float32)
        with torch.inference_mode():
            expected = plain(torch.from_numpy(images))
        for name, mine, other in zip(outputs, expected, run(images), strict=True):
            apart = np.abs(mine.numpy() - other)
            # NaN is no agreement: it must not vanish in a maximum.
            differences[name] = max(differences[name], float(apart.max()) if np.isfinite(apart).all() else float("inf"))
    return differences
