"""Export a trained network as an ONNX file, kept only if it reproduces the network's outputs.

The file is written under a temporary name in the target folder and run on random images, in batch sizes other than the
traced one. It replaces the target only if every output agrees. An existing target stays unchanged until then.
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
    """Write the file, compare it with the network, and keep it if they agree.

    Args:
        network: Takes float32 `[batch, 3, height, width]` from 0 to 1 and returns a tuple of tensors. A float32 copy of it
            is exported on the CPU in eval mode.
        path: The target file; replaced only if the outputs agree.
        size: Height and width of the images.
        outputs: Output names in order, each with the largest allowed difference.
        metadata: Metadata to store in the file.

    Returns:
        The largest difference of each output.

    Raises:
        MachineError: A required package is not installed (`hasten[recipes]`), or the file cannot be written.
        HastenError: The file's outputs differ from the network's; the file was removed.
    """
    _check_installed()
    exported = copy.deepcopy(network).float().cpu().eval().requires_grad_(requires_grad=False)
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}-", suffix=".onnx", dir=path.parent)
        os.close(number)
    except OSError as error:
        raise MachineError(f"cannot write {path} ({error.strerror}): choose another location.") from error
    temporary = Path(name)
    try:
        _write(exported, temporary, size, list(outputs), metadata)
        differences = _compare(exported, temporary, size, list(outputs))
        apart = [name for name, limit in outputs.items() if not differences[name] <= limit]
        if apart:
            deviations = ", ".join(f"{name} by {differences[name]:.3g} (allowed: {outputs[name]:g})" for name in apart)
            raise HastenError(
                f"The outputs of the ONNX file differ from the model's: {deviations}. The file was removed. Update torch "
                f"and onnxscript, or report the problem with the versions of both."
            )
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return differences


def runner_of(path: Path, outputs: Sequence[str]) -> Run:
    """Return a function that runs an ONNX file with onnxruntime if it is installed, else with ONNX's reference evaluator.

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
        raise MachineError(f"ONNX export needs {' and '.join(missing)}, not installed: pip install 'hasten[recipes]'")


def _write(exported: nn.Module, path: Path, size: tuple[int, int], outputs: list[str], metadata: Mapping[str, str]) -> None:
    import onnx  # noqa: PLC0415  an extra

    batch = torch.export.Dim("batch", min=1)
    program: Any = torch.onnx.export(
        exported, (torch.zeros(2, 3, *size),), dynamo=True, input_names=["images"], output_names=outputs,
        dynamic_shapes=({0: batch},), opset_version=OPSET, verbose=False,
    )  # fmt: skip
    proto = program.model_proto
    for key, value in metadata.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.save(proto, str(path))


def _compare(exported: nn.Module, path: Path, size: tuple[int, int], outputs: list[str]) -> dict[str, float]:
    """Return the largest difference of each output over batch sizes other than the traced one."""
    run = runner_of(path, outputs)
    differences = dict.fromkeys(outputs, 0.0)
    random = np.random.default_rng(0)
    for batch in CHECKED_BATCHES:
        images = random.random((batch, 3, *size), dtype=np.float32)
        with torch.inference_mode():
            expected = exported(torch.from_numpy(images))
        for name, reference, result in zip(outputs, expected, run(images), strict=True):
            apart = np.abs(reference.numpy() - result)
            # NaN must count as a difference; `max` would drop it.
            differences[name] = max(differences[name], float(apart.max()) if np.isfinite(apart).all() else float("inf"))
    return differences
