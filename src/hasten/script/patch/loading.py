"""Write what the loader is told: worker processes, page-locked memory, full batches."""

from __future__ import annotations

import ast
import inspect
import multiprocessing
from collections.abc import Mapping

import torch

from hasten.optimizations.drop_last import DropLast
from hasten.optimizations.loader_workers import LoaderWorkers
from hasten.optimizations.pinned_memory import PinnedMemory
from hasten.script.patch.edits import Changes
from hasten.script.patch.find import Place, backward_calls, loops_around, training_loader
from hasten.script.patch.scopes import Scope
from hasten.script.patch.source import UnwritableError
from hasten.script.patch.starting import set_once

_DEVICES = ("device", "gpu", "rank", "cuda")


def loader_workers(changes: Changes, item: LoaderWorkers) -> str:
    """`num_workers` and what belongs to it."""
    values = {"num_workers": str(item.num_workers)}
    if item.num_workers:
        values |= {"prefetch_factor": str(item.prefetch_factor), "persistent_workers": str(item.persistent)}
    if item.pin_memory:
        values["pin_memory"] = "True"
    place = _loader(values, changes)
    if not item.num_workers and isinstance(place.node, ast.Call):  # these are refused without workers
        off = {"prefetch_factor": "None", "persistent_workers": "False"}
        values |= {part.arg: off[part.arg] for part in place.node.keywords if part.arg in off}
    if item.num_workers and (unguarded := _unguarded(changes)) and multiprocessing.get_all_start_methods()[0] != "fork":
        raise UnwritableError(
            f"each worker imports the script here, and {unguarded} would train again in it: put the training into a "
            f'function that is called under `if __name__ == "__main__":` first',
            _call_line(values),
        )
    said = _said(_set(changes, place, values), place)
    return f"{said}; {set_once(changes, 'torch.set_num_threads', str(item.threads))}" if item.threads else said


def pinned_memory(changes: Changes, _: PinnedMemory) -> str:
    """`pin_memory`, and copies of the batch that do not wait."""
    values = {"pin_memory": "True"}
    place = _loader(values, changes)
    words = _set(changes, place, values)
    copies = [copy for copy in _copies(changes) if changes.set_arguments(*copy, {"non_blocking": "True"})]
    if copies:
        places = dict.fromkeys(scope.source.line_of(call) for call, scope in copies)
        words.append(f"non_blocking=True at {', '.join(places)}")
    return _said(words, place)


def drop_last(changes: Changes, _: DropLast) -> str:
    """`drop_last=True`."""
    values = {"drop_last": "True"}
    place = _loader(values, changes)
    call = place.node
    if isinstance(call, ast.Call) and (len(call.args) > 4 or any(part.arg == "batch_sampler" for part in call.keywords)):
        raise UnwritableError(f"a sampler makes the batches ({place.words})", "give that one drop_last=True")
    return _said(_set(changes, place, values), place)


def _loader(values: Mapping[str, str], changes: Changes) -> Place:
    try:
        return training_loader(changes.project)
    except UnwritableError as error:
        raise UnwritableError(error.reason, _call_line(values)) from error


def _call_line(values: Mapping[str, str]) -> str:
    return f"DataLoader(..., {', '.join(f'{name}={value}' for name, value in values.items())})"


def _said(words: list[str], place: Place) -> str:
    if not words:
        raise UnwritableError(f"the loader has it already ({place.words})")
    return f"{', '.join(words)} (loader at {place.words})"


def _set(changes: Changes, place: Place, values: Mapping[str, str]) -> list[str]:
    order = [name for name in inspect.signature(torch.utils.data.DataLoader.__init__).parameters if name != "self"]
    call = place.node
    if not isinstance(call, ast.Call):
        raise UnwritableError(f"{place.words} is no call")
    try:
        return changes.set_arguments(call, place.scope, values, order)
    except UnwritableError as error:
        raise UnwritableError(error.reason, _call_line(values)) from error


def _unguarded(changes: Changes) -> str:
    """Where the script trains when it is merely imported; empty where it does not."""
    for place in backward_calls(changes.project):
        for loop in loops_around(changes.project, place):
            source = loop.scope.source
            if source is changes.project.script and loop.scope.parent is None:
                guards = [node for node in source.up(loop.node) if isinstance(node, ast.If)]
                if not any("__name__" in ast.unparse(guard.test) for guard in guards):
                    return loop.words
    return ""


def _copies(changes: Changes) -> list[tuple[ast.Call, Scope]]:
    """The copies to a device, within the loops of the training, of what is no module."""
    found: dict[ast.Call, Scope] = {}
    project = changes.project
    for place in backward_calls(project):
        for loop in list(loops_around(project, place))[:1]:
            scopes = project.scopes(loop.scope.source)
            for node in ast.walk(loop.node):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                if _to_device(node) and not project.defines_method(node.func.attr):
                    found[node] = scopes.of[node]
    return list(found.items())


def _to_device(call: ast.Call) -> bool:
    func = call.func
    if not isinstance(func, ast.Attribute) or any(part.arg in ("non_blocking", None) for part in call.keywords):
        return False
    if not isinstance(func.value, ast.Name | ast.Subscript | ast.Attribute):
        return False
    if func.attr == "cuda":
        return len(call.args) < 2
    if func.attr != "to" or len(call.args) + len(call.keywords) != 1:
        return False
    words = ast.unparse(call.args[0] if call.args else call.keywords[0].value).lower()
    return any(word in words for word in _DEVICES)
