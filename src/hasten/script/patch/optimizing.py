"""Write what the optimizer is told: fused or listed kernels, gradients that are freed."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Mapping

import torch

from hasten.optimizations.foreach_optimizer import WITH_FOREACH, ForeachOptimizer
from hasten.optimizations.fused_optimizer import FUSABLE, FusedOptimizer
from hasten.optimizations.zero_grad_to_none import ZeroGradToNone
from hasten.script.patch.edits import Changes
from hasten.script.patch.find import the_optimizer
from hasten.script.patch.source import UnwritableError

LEAVES_ZEROS = "set_to_none"


def fused_optimizer(changes: Changes, _: FusedOptimizer) -> str:
    """`fused=True`."""
    return _switch(changes, "fused", "foreach", FUSABLE)


def foreach_optimizer(changes: Changes, _: ForeachOptimizer) -> str:
    """`foreach=True`."""
    return _switch(changes, "foreach", "fused", WITH_FOREACH)


def _switch(changes: Changes, flag: str, other: str, kinds: Collection[str]) -> str:
    line = f"torch.optim.NAME(..., {flag}=True)"
    try:
        place, name = the_optimizer(changes.project)
    except UnwritableError as error:
        raise UnwritableError(error.reason, line) from error
    line = f"torch.optim.{name}(..., {flag}=True)"
    if name not in kinds:
        raise UnwritableError(f"{name} ({place.words}) has no such form")
    call = place.node
    if not isinstance(call, ast.Call):
        raise UnwritableError(f"{place.words} is no call", line)
    values: Mapping[str, str] = {flag: "True"}
    if any(keyword.arg == other for keyword in call.keywords):
        values = {flag: "True", other: "False"}  # both at once are refused
    order = [key for key in inspect.signature(getattr(torch.optim, name).__init__).parameters if key != "self"]
    try:
        words = changes.set_arguments(call, place.scope, values, order)
    except UnwritableError as error:
        raise UnwritableError(error.reason, line) from error
    if not words:
        raise UnwritableError(f"the optimizer has it already ({place.words})")
    return f"{', '.join(words)} at {place.words}"


def zero_grad_to_none(changes: Changes, _: ZeroGradToNone) -> str:
    """`zero_grad()` as PyTorch has it by default."""
    done, unknown = [], []
    for call, scope in changes.project.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "zero_grad":
            continue
        given = [keyword.value for keyword in call.keywords if keyword.arg == LEAVES_ZEROS] + call.args[:1]
        for value in given:
            if not isinstance(value, ast.Constant):
                unknown.append(scope.source.line_of(call))
            elif value.value is False:
                changes.remove_argument(call, scope.source, value)
                done.append(scope.source.line_of(call))
    if done:
        return f"gradients are freed, not filled with zeros, at {', '.join(done)}"
    where = f" (set_to_none is not plain at {', '.join(unknown)})" if unknown else ""
    raise UnwritableError(f"no zero_grad(set_to_none=False) was found{where}", "optimizer.zero_grad()")
