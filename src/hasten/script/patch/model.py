"""Find the model of a training script: the variable whose parameters are passed to the optimizer."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from hasten.core.source_edits import UnwritableError
from hasten.script.patch.find import Place, stepped, the_optimizer, training_line
from hasten.script.patch.flow import Origin, assigned_attributes, origins
from hasten.script.patch.project import Project
from hasten.script.patch.source import FUNCTIONS, Bind, Scope

MAX_DEPTH = 5
"""Number of calls through which a model is followed."""
_PARAMETERS = frozenset({"parameters", "named_parameters"})


@dataclass(frozen=True)
class Model:
    """The model whose parameters the optimizer updates.

    Attributes:
        text: Source text of its variable where it is created, such as `model` or `self.model`.
        calls: The calls that created it, including wrappers.
        first: The last line of the statements that create it; None if only `before` is known.
        last: The last line of the statements that create and wrap it before training; None if only `before` is known.
        before: The statement that creates the optimizer.
    """

    text: str
    calls: tuple[Origin, ...]
    first: Place | None
    last: Place | None
    before: Place


def the_model(project: Project) -> Model:
    """Return the model whose parameters are passed to the optimizer.

    Raises:
        UnwritableError: The optimizer's arguments do not show which model that is.
    """
    place = _optimizer_of_any_class(project)
    models: dict[str, Model] = {}
    before = Place(place.scope.source.statement(place.node), place.scope)
    for owner in _trained(project, place):
        model = _Homes(project, before).of(owner)
        if model is None:
            raise UnwritableError(f"it is unclear where the model of the optimizer ({place.words}) is created")
        models.setdefault(model.text, model)
    if len(models) != 1:
        seen = ", ".join(models) or "none was found"
        raise UnwritableError(f"the optimizer ({place.words}) does not hold the parameters of exactly one module: {seen}")
    return next(iter(models.values()))


def _optimizer_of_any_class(project: Project) -> Place:
    """Return the call that creates the optimizer: one of torch.optim, or the only other one that steps in training."""
    try:
        return the_optimizer(project)[0]
    except UnwritableError:
        calls = stepped(project)
        others = [Place(call, scope) for call, scope in project.calls if call in calls]
        others = [place for place in others if _trained(project, place)]
        if len(others) != 1:
            raise
        return others[0]


def _trained(project: Project, optimizer: Place) -> list[Place]:
    """Return the models whose parameters are passed to an optimizer."""
    call = optimizer.node
    given = call.args[:1] if isinstance(call, ast.Call) else []
    given = given or [item.value for item in getattr(call, "keywords", []) if item.arg == "params"]
    return [_whole(project, item) for value in given for item in _owners(project, value, optimizer.scope)]


def _owners(project: Project, value: ast.expr, scope: Scope, depth: int = 0) -> list[Place]:
    """Return the expressions whose `.parameters()` a value contains."""
    if depth > MAX_DEPTH:
        return []
    owners = _owners_in(value, scope)
    if owners:
        return owners
    scopes = scope.source.scopes
    for node in ast.walk(value):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            known = scopes.of.get(node, scope).lookup(node.id)
            for bind in known[1] if known else ():
                if bind.kind in ("value", "element") and bind.value is not None and known is not None:
                    owners += _owners(project, bind.value, known[0], depth + 1)
        elif isinstance(node, ast.Call):
            callee = project.callee(node, scopes.of.get(node, scope))
            if isinstance(callee, FUNCTIONS):
                owners += _owners_in(callee, project.home(callee).scopes.inner[callee])
    return owners


def _owners_in(node: ast.AST, scope: Scope) -> list[Place]:
    """Return the expressions whose `.parameters()` are called in a node itself."""
    scopes = scope.source.scopes
    return [
        Place(item.func.value, scopes.of.get(item, scope))
        for item in ast.walk(node)
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and item.func.attr in _PARAMETERS
    ]


def _whole(project: Project, owner: Place) -> Place:
    """Return the whole model of a part: `model` for `model.head` and for `model.module`."""
    node = owner.node
    while isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
        made = origins(project, node.value, owner.scope)
        if node.attr != "module" and not any(is_module(project, item) for item in made):
            break
        node = node.value
    return Place(node, owner.scope)


def is_module(project: Project, origin: Origin) -> bool:
    """Return whether a call creates an nn.Module, as far as can be seen."""
    callee = project.callee(origin.call, origin.scope)
    if isinstance(callee, ast.ClassDef):
        return project.is_module_class(callee)
    dotted = project.called(origin.call, origin.scope)
    name = dotted.rpartition(".")[2]
    return dotted.startswith("torch.nn.") and name[:1].isupper() and name != "Parameter"


class _Homes:
    """Follows a model to the variable in which it is created."""

    def __init__(self, project: Project, before: Place) -> None:
        self.project, self.before = project, before

    def of(self, owner: Place, depth: int = 0) -> Model | None:
        """Return the model that an expression refers to; None if unknown."""
        node, scope = owner.node, owner.scope
        if depth > MAX_DEPTH:
            return None
        if isinstance(node, ast.Attribute):
            return self._attribute(node, scope)
        if not isinstance(node, ast.Name):
            return None
        if node.id == "self" and scope.owner is not None:
            return self._instance(scope, scope.owner[0], depth)
        bound = scope.lookup(node.id)
        if bound is None:
            return None
        home, binds = bound
        if any(bind.kind == "param" for bind in binds):
            return self._parameter(node, home, binds, depth)
        if binds[0].kind == "import":
            module = self.project.find(home.source, binds[0].module, binds[0].level)
            if module is None or binds[0].name is None:
                return None
            return self.of(Place(ast.Name(binds[0].name), module.scopes.module), depth + 1)
        statements = [home.source.statement(bind.node) for bind in binds if bind.kind == "value"]
        return self._made(Place(node, scope), statements, home) if statements else None

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Model | None:
        holder = scope.owner
        if holder is None or not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            return None
        values = list(assigned_attributes(self.project, holder[0], node.attr))
        if len({inner.function for _, _, inner in values}) != 1:
            return None
        statements = [inner.source.statement(value) for value, _, inner in values]
        return self._made(Place(node, scope), statements, values[0][2])

    def _parameter(self, node: ast.Name, home: Scope, binds: list[Bind], depth: int) -> Model | None:
        """Return the model passed by the only call of a function. If there are several calls, use the parameter itself."""
        function = home.node
        callers = self.project.callers(function) if isinstance(function, FUNCTIONS) else []
        if isinstance(function, FUNCTIONS) and len(callers) == 1 and len(binds) == 1:
            passed = self.project.passed(function, node.id, callers[0][0])
            return None if passed is None else self.of(Place(passed, callers[0][1]), depth + 1)
        if self.before.scope.lookup(node.id) != (home, binds):
            return None
        return Model(node.id, tuple(origins(self.project, node, home)), None, None, self.before)

    def _instance(self, scope: Scope, kind: ast.ClassDef, depth: int) -> Model | None:
        """Return the object of a method's only call, as in `model.make_optimizer()`; else the class's only instance."""
        callers = self.project.callers(scope.function) if scope.function is not None else []
        targets = [Place(call.func.value, inner) for call, inner in callers if isinstance(call.func, ast.Attribute)]
        if not targets:
            for call, inner in self.project.callers(kind):
                statement = inner.source.statement(call)
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name | ast.Attribute):
                    targets.append(Place(statement.targets[0], inner))
        return self.of(targets[0], depth + 1) if len(targets) == 1 else None

    def _made(self, owner: Place, statements: list[ast.stmt], scope: Scope) -> Model:
        """Return the model of a variable: the statements that create and wrap it before training."""
        source, first, before, text = scope.source, statements[0], self.before, ast.unparse(owner.node)
        limit = training_line(self.project, first, scope)
        known = before.node.lineno if before.scope.source is source and before.scope.function is scope.function else 0
        early = [item for item in statements if limit is None or item.lineno < limit or item is first]
        tops = _tops(scope, early)
        chosen = [
            top
            for item, top in zip(early, tops, strict=True)
            if top is tops[0] or item.lineno < known or _mentions(item, text)  # later assignments are other models
        ]
        chosen.sort(key=lambda item: item.lineno)
        made = () if isinstance(owner.node, ast.stmt) else tuple(origins(self.project, owner.node, owner.scope))
        return Model(text, made, Place(chosen[0], scope), Place(chosen[-1], scope), before)


def _mentions(statement: ast.stmt, text: str) -> bool:
    """Return whether the assigned value uses the variable itself, as in `model = DDP(model)`."""
    value = getattr(statement, "value", None)
    return value is not None and any(ast.unparse(node) == text for node in ast.walk(value) if isinstance(node, ast.expr))


def _tops(scope: Scope, statements: list[ast.stmt]) -> list[ast.stmt]:
    """Return, for each statement, the statement that contains it in the innermost common block."""
    source = scope.source
    chains = [[item for item in source.up(statement) if isinstance(item, ast.stmt)] for statement in statements]
    for holder in chains[0]:
        block = source.block(holder)
        tops = [item for chain in chains for item in chain if item in block]
        if len(tops) == len(chains):
            return tops
    return statements
