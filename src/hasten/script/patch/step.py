"""Find the forward part of a training step: from the first call of the model to the line before `.backward()`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from torch import nn

from hasten.core.source_edits import UnwritableError
from hasten.script.patch.find import Place, backward_calls, names_of
from hasten.script.patch.flow import Origin, origins
from hasten.script.patch.model import is_module, the_model
from hasten.script.patch.project import Project
from hasten.script.patch.source import FUNCTIONS, Function, Scope

_NO_FORWARD = (frozenset(dir(nn.Module)) | {"step", "backward", "no_sync"}) - {"forward", "__call__"}
FRAMEWORKS = ("accelerate", "lightning", "pytorch_lightning", "deepspeed")


@dataclass(frozen=True)
class Step:
    """The statements that compute the loss.

    Attributes:
        scope: Their scope.
        statements: The statements, in order. The last one is `backward` if it also computes the loss.
        backward: The statement that calls `.backward()`, or a function that does.
        inline: The expression that is computed and differentiated in one line, as in `criterion(model(x), y).backward()`.
        calls: Direct calls of the model in these statements.
        library: The package whose object runs the backward pass (`accelerate`), which may have settings of its own.
    """

    scope: Scope
    statements: tuple[ast.stmt, ...]
    backward: ast.stmt
    inline: ast.expr | None
    calls: tuple[ast.Call, ...]
    library: str = ""


def forward_step(project: Project) -> Step:
    """Return the forward part of the only training step.

    Raises:
        UnwritableError: There is not exactly one `.backward()`, or no call of the model leads to it.
    """
    places = backward_calls(project)
    if len(places) != 1:
        listed = f" ({', '.join(place.words for place in places)})" if places else ""
        number = "more than one call" if places else "no call"
        raise UnwritableError(f"{number} of .backward() was found in {names_of(project)}{listed}")
    place = places[0]
    call = place.node
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        raise UnwritableError(f"{place.words} calls backward in an unsupported form")
    made = origins(project, call.func.value, place.scope)[:1] if call.args else []
    library = next((name for item in made if (name := _library(project, item))), "")
    takes = bool(library) or project.called(call, place.scope) == "torch.autograd.backward"
    step = _Search(project).upward(place, call.args[0] if takes and call.args else call.func.value, splits=not takes)
    if step is None:
        raise UnwritableError(f"no call of the model was found before {place.words}")
    return replace(step, library=library)


def _library(project: Project, origin: Origin) -> str:
    package = project.called(origin.call, origin.scope).partition(".")[0]
    return package if package in FRAMEWORKS else ""


class _Search:
    def __init__(self, project: Project) -> None:
        self.project = project
        try:
            self.models = {item.call for item in the_model(project).calls}
        except UnwritableError:
            self.models = set()

    def upward(self, place: Place, loss: ast.expr, *, splits: bool, depth: int = 0) -> Step | None:
        """Search the block of a place, then the enclosing blocks, then the block of the only call of its function."""
        source, needed = place.scope.source, set(read_names(loss))
        statement = source.statement(place.node)
        computes = _computes(loss)
        if computes and not (splits and is_split(statement, place.node)):
            raise UnwritableError(f"{place.words} computes the loss and calls backward inside another expression")
        inline = loss if computes and self._calls(loss, place.scope) else None
        at: ast.AST = statement
        while not isinstance(at, (*FUNCTIONS, ast.ClassDef, ast.Module)):
            if isinstance(at, ast.stmt):
                step = self._in_block(place.scope, at, needed, loss if computes and at is statement else None)
                if step is not None:
                    return step
                if inline is not None and at is statement:
                    return Step(place.scope, (statement,), statement, inline, self._direct((inline,), place.scope))
                if isinstance(at, ast.For | ast.AsyncFor):
                    needed |= set(read_names(at.iter))
            at = source.parent[at]
        return self._caller(at, loss, depth) if isinstance(at, FUNCTIONS) else None

    def _caller(self, function: Function, loss: ast.expr, depth: int) -> Step | None:
        """Continue where the function that receives the loss is called."""
        callers = self.project.callers(function)
        if len(callers) != 1 or depth > 3 or not isinstance(loss, ast.Name):
            return None
        call, scope = callers[0]
        passed = self.project.passed(function, loss.id, call)
        return None if passed is None else self.upward(Place(call, scope), passed, splits=False, depth=depth + 1)

    def _in_block(self, scope: Scope, statement: ast.stmt, needed: set[str], inline: ast.expr | None) -> Step | None:
        """Return the statements before a statement, in its block, that compute the loss."""
        block = scope.source.block(statement)
        end = block.index(statement)
        chosen: list[int] = []
        for at in range(end - 1, -1, -1):
            if needed & set(bound_names(block[at])):
                chosen.append(at)
                needed |= set(read_names(block[at]))
        calling = [at for at in sorted(chosen) if self._calls(block[at], scope)]
        if not calling:
            return None
        last = end if inline is not None else max(chosen)
        statements = tuple(block[calling[0] : last + 1])
        return Step(scope, statements, statement, inline, self._direct(statements, scope))

    def _calls(self, node: ast.AST, scope: Scope, depth: int = 0) -> bool:
        """Return whether a node calls the model, or a function that does."""
        scopes = scope.source.scopes
        calls = [item for item in ast.walk(node) if isinstance(item, ast.Call)]
        return any(self._runs_model(call, scopes.of.get(call, scope), depth) for call in calls)

    def _direct(self, nodes: Iterable[ast.AST], scope: Scope) -> tuple[ast.Call, ...]:
        """Return the direct calls of the model that the optimizer trains."""
        scopes = scope.source.scopes
        calls = [item for node in nodes for item in ast.walk(node) if isinstance(item, ast.Call) and _is_variable(item.func)]
        return tuple(sorted((call for call in calls if self._is_trained(call, scopes.of[call])), key=_position))

    def _is_trained(self, call: ast.Call, scope: Scope) -> bool:
        if self.project.callee(call, scope) is not None:
            return False
        return any(item.call in self.models for item in origins(self.project, call.func, scope))

    def _runs_model(self, call: ast.Call, scope: Scope, depth: int) -> bool:
        callee = self.project.callee(call, scope)
        if isinstance(callee, ast.ClassDef) or self.project.called(call, scope):
            return False
        if isinstance(callee, FUNCTIONS):
            inner = self.project.home(callee).scopes.inner[callee]
            return depth < 3 and any(self._calls(item, inner, depth + 1) for item in callee.body)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _NO_FORWARD:
            return False
        if isinstance(call.func, ast.Name | ast.Attribute):
            made = origins(self.project, call.func, scope)
            if not _is_variable(call.func):  # a method of a module, not of a module's result
                made = made[:1]
            return any(item.call in self.models or is_module(self.project, item) for item in made)
        return False


def _is_variable(expression: ast.expr) -> bool:
    """Return whether an expression has the form of a module variable: `model`, `self.model`, `model.module`."""
    if not isinstance(expression, ast.Attribute):
        return isinstance(expression, ast.Name)
    return expression.attr == "module" or (isinstance(expression.value, ast.Name) and expression.value.id == "self")


def _computes(loss: ast.expr) -> bool:
    """Return whether an expression does more than scale the loss and average it over devices."""
    if isinstance(loss, ast.Call) and isinstance(loss.func, ast.Attribute) and loss.func.attr in ("scale", "mean", "sum"):
        return any(isinstance(node, ast.Call) for part in (loss.func.value, *loss.args) for node in ast.walk(part))
    return any(isinstance(node, ast.Call) for node in ast.walk(loss))


def _position(call: ast.Call) -> tuple[int, int]:
    return call.lineno, call.col_offset


def is_split(statement: ast.stmt, call: ast.AST) -> bool:
    """Return whether a statement consists only of the call."""
    return isinstance(statement, ast.Expr) and statement.value is call


def read_names(node: ast.AST) -> Iterator[str]:
    """Yield the names, also with attributes (`self.loss`), that a node reads."""
    for item in ast.walk(node):
        if isinstance(item, ast.Name | ast.Attribute) and isinstance(item.ctx, ast.Load):
            yield ast.unparse(item)


def bound_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names, also with attributes, that a statement assigns, excluding functions defined in it."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield ast.unparse(node)
        waiting += ast.iter_child_nodes(node)


def plain_inputs(step: Step) -> list[str]:
    """Return the names of the model's first arguments that the same function binds before the step."""
    bound = {name for statement in step.statements for name in bound_names(statement)}
    names = [call.args[0].id for call in step.calls if call.args and isinstance(call.args[0], ast.Name)]
    own = step.scope.binds.keys() - step.scope.elsewhere.keys()  # assigning to any other name would create a new variable
    return [name for name in dict.fromkeys(names) if name in own - bound]
