"""Find the relevant places of a training script: its loops, its loader and its optimizer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hasten.core.source_edits import UnwritableError
from hasten.script.patch.flow import Origin, origins
from hasten.script.patch.project import Project
from hasten.script.patch.source import FUNCTIONS, LOOPS, Function, Scope

DATALOADER = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")


@dataclass(frozen=True)
class Place:
    """A node of the syntax tree and its scope."""

    node: ast.expr | ast.stmt
    scope: Scope

    @property
    def words(self) -> str:
        """Return the location, such as `train.py:12`."""
        return self.scope.source.line_of(self.node)


def names_of(project: Project) -> str:
    """Describe the script and the files that it imports, for messages."""
    name, more = project.script.path.name, len(project.sources) - 1
    return name if not more else f"{name} and the {more} file{'s' * (more > 1)} that it imports from its folder"


# The loop.


def backward_calls(project: Project) -> list[Place]:
    """Return the calls of `.backward()` that the script leads to, or all in the project if none is found."""
    places = [
        Place(call, scope)
        for call, scope in project.calls
        if (isinstance(call.func, ast.Attribute) and call.func.attr == "backward")
        or project.called(call, scope) == "torch.autograd.backward"
    ]
    return _led_to(project, places) or places


def _led_to(project: Project, places: list[Place]) -> list[Place]:
    """Return those places that are in the script itself or in functions that it calls."""
    script = project.script
    return [place for place in places if any(item.scope.source is script for item in reaches(project, place))]


def loops_around(project: Project, place: Place, *, only_caller: bool = False, depth: int = 0) -> Iterator[Place]:
    """Yield the loops around a place, innermost first, followed by those around the calls of its function.

    Args:
        project: The project.
        place: The place to start from.
        only_caller: Stop at functions that are not called exactly once.
        depth: Number of functions left so far.
    """
    source = place.scope.source
    outermost: Function | None = None
    for node in source.up(place.node):
        if isinstance(node, LOOPS):
            yield Place(node, project.scope(node, source))
        if isinstance(node, FUNCTIONS):
            outermost = node
    if outermost is None or depth > 3:
        return
    callers = project.callers(outermost)
    if only_caller and len(callers) != 1:
        return
    for call, scope in callers:
        yield from loops_around(project, Place(call, scope), only_caller=only_caller, depth=depth + 1)


def training_loops(project: Project) -> tuple[Place, ...]:
    """Return the training loops, innermost first.

    Raises:
        UnwritableError: There is no training loop, or several.
    """
    chains = [tuple(loops_around(project, place, only_caller=True)) for place in backward_calls(project)]
    outermost = {chain[-1].node: chain for chain in chains if chain}
    if len(outermost) != 1:
        raise UnwritableError(_how_many(len(outermost), "loop that calls .backward()", project))
    return next(iter(outermost.values()))


def reaches(project: Project, place: Place, depth: int = 0) -> Iterator[Place]:
    """Yield a place, the calls of its function, the calls of those functions, and so on."""
    yield place
    function = place.scope.function
    if function is not None and depth <= 3:
        for call, scope in project.callers(function):
            yield from reaches(project, Place(call, scope), depth + 1)


def training_line(project: Project, statement: ast.stmt, scope: Scope) -> int | None:
    """Return the first line that trains in a statement's function, ignoring loops around the statement; None if none."""
    lines = []
    around = set(scope.source.up(statement))
    for start in backward_calls(project):
        for place in reaches(project, start):
            if place.scope.source is scope.source and place.scope.function is scope.function:
                loops = [item for item in scope.source.up(place.node) if isinstance(item, LOOPS) and item not in around]
                lines.append(min([place.node.lineno, *(item.lineno for item in loops)]))
    return min(lines, default=None)


def _how_many(number: int, what: str, project: Project) -> str:
    return f"{'no' if number == 0 else f'more than one ({number})'} {what} was found in {names_of(project)}"


# The loader.


def training_loader(project: Project) -> Place:
    """Return the call of DataLoader that feeds the training.

    Raises:
        UnwritableError: There is no such call, or more than one is possible.
    """
    all_of_them = [Origin(call, scope) for call, scope in project.calls_of(*DATALOADER)]
    if not all_of_them:
        raise UnwritableError(f"no call of torch's DataLoader was found in {names_of(project)}")
    known = {item.call for item in all_of_them}
    fed = list(dict.fromkeys(item for place in backward_calls(project) for item in _feeding(project, place, known)))
    found = fed
    if not fed:
        elsewhere = _read_elsewhere(project)
        likely = (item for item in all_of_them if _shuffles(item.call) or _by_name(item.scope))
        found = [item for item in likely if item.call not in elsewhere]
    if len(found) > 1 and len(shuffled := [item for item in found if _shuffles(item.call)]) == 1:
        found = shuffled
    if len(found) != 1:
        places = ", ".join(item.scope.source.line_of(item.call) for item in all_of_them)
        why = "more than one DataLoader may feed the training" if found else "no DataLoader is known to feed a training loop"
        raise UnwritableError(f"{why} ({places})")
    return Place(found[0].call, found[0].scope)


def _feeding(project: Project, place: Place, known: set[ast.Call]) -> list[Origin]:
    """Return the loaders that the nearest loop around a backward call reads from."""
    for loop in loops_around(project, place):
        sources: list[tuple[ast.expr, Scope]] = []
        if isinstance(loop.node, ast.For | ast.AsyncFor):
            sources.append((loop.node.iter, loop.scope))
        sources += _next_calls(project, loop.node, loop.scope)
        loaders = [item for value, scope in sources for item in origins(project, value, scope) if item.call in known]
        if loaders:
            return loaders
    return []


def _read_elsewhere(project: Project) -> set[ast.Call]:
    """Return the loaders read by loops without a backward pass, for example in an evaluation."""
    training: set[ast.AST] = {loop.node for place in backward_calls(project) for loop in loops_around(project, place)}
    return {
        item.call
        for source in project.sources.values()
        for node, scope in source.scopes.of.items()
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and node not in training
        for item in origins(project, node.iter, scope)
    }


def _next_calls(project: Project, node: ast.AST, scope: Scope, depth: int = 0) -> list[tuple[ast.expr, Scope]]:
    """Return the arguments of `next(...)` in a node and in functions called there, where gradients are enabled."""
    scopes, sources = scope.source.scopes, []
    for call in ast.walk(node):
        if not isinstance(call, ast.Call):
            continue
        inner = scopes.of[call]
        if (
            isinstance(call.func, ast.Name)
            and call.func.id == "next"
            and call.args
            and not _no_gradients(project, call, inner)
        ):
            sources.append((call.args[0], inner))
        callee = project.callee(call, inner)
        if isinstance(callee, FUNCTIONS) and depth < 2:
            sources += _next_calls(project, callee, project.home(callee).scopes.inner[callee], depth + 1)
    return sources


def _no_gradients(project: Project, call: ast.Call, scope: Scope) -> bool:
    contexts = [item.context_expr for node in scope.source.up(call) if isinstance(node, ast.With) for item in node.items]
    return any(
        isinstance(item, ast.Call) and project.dotted(item.func, scope) in ("torch.no_grad", "torch.inference_mode")
        for item in contexts
    )


def _shuffles(call: ast.Call) -> bool:
    values = [keyword.value for keyword in call.keywords if keyword.arg == "shuffle"] + call.args[2:3]
    return any(isinstance(value, ast.Constant) and value.value is True for value in values)


def _by_name(scope: Scope) -> bool:
    """Return whether a scope is `train_dataloader`, the method that Lightning and others call for the training loader."""
    return scope.function is not None and scope.function.name == "train_dataloader"


# The optimizer.


def optimizer_name(project: Project, call: ast.Call, scope: Scope) -> str:
    """Return the class name if a call creates an optimizer of torch.optim; "" for any other call."""
    dotted = project.called(call, scope)
    name = dotted.rpartition(".")[2]
    kind = getattr(torch.optim, name, None) if dotted.startswith("torch.optim.") else None
    return name if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) else ""


def the_optimizer(project: Project) -> tuple[Place, str]:
    """Return the call that creates the optimizer, and the name of its class.

    Raises:
        UnwritableError: There is no such call, or several.
    """
    candidates = [(Place(call, scope), optimizer_name(project, call, scope)) for call, scope in project.calls]
    candidates = [item for item in candidates if item[1]]
    led_to = _led_to(project, [place for place, _ in candidates])
    candidates = [item for item in candidates if item[0] in led_to] or candidates
    if len(candidates) > 1:
        calls = stepped(project)
        candidates = [item for item in candidates if item[0].node in calls] or candidates
    if len(candidates) != 1:
        places = f" ({', '.join(place.words for place, _ in candidates)})" if candidates else ""
        raise UnwritableError(_how_many(len(candidates), "call of an optimizer of torch.optim", project) + places)
    return candidates[0]


def stepped(project: Project) -> set[ast.expr | ast.stmt]:
    """Return the calls that created the objects whose `.step()` is called in a training loop."""
    made: set[ast.expr | ast.stmt] = set()
    for place in backward_calls(project):
        for loop in loops_around(project, place):
            scopes = loop.scope.source.scopes
            for node in ast.walk(loop.node):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step":
                    made |= {item.call for item in origins(project, node.func.value, scopes.of[node])}
    return made
