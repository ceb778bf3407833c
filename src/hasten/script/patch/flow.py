"""Find the calls that may have created a value, following assignments, arguments, returns and wrappers."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from hasten.script.patch.project import Project
from hasten.script.patch.source import FUNCTIONS, Bind, Function, Scope

RETURNS_ITSELF = frozenset(
    "to cuda cpu train eval float double half bfloat16 requires_grad_ apply share_memory xpu items values get copy".split()  # noqa: SIM905
)
"""Methods that return their object, or something it contains."""
_MAX_STEPS = 1000
"""Number of expressions that are followed for one value."""
Seen: TypeAlias = tuple[ast.AST, ast.Call | None]


@dataclass(frozen=True)
class Origin:
    """A call that may have created a value, and its scope."""

    call: ast.Call
    scope: Scope


def origins(project: Project, expression: ast.expr, scope: Scope) -> list[Origin]:
    """Return the calls that may have created the value of an expression, outermost wrapper first.

    If the code of a call is not followed, the result contains the call and the origins of its arguments. So `tqdm(loader)`
    and `DistributedDataParallel(model)` lead to the loader and to the model.
    """
    key = ("origins", expression)
    if key not in project.notes:
        project.notes[key] = _Trace(project).found(expression, scope)
    result: list[Origin] = project.notes[key]
    return result


def only_value(expression: ast.expr, scope: Scope) -> tuple[ast.expr, Scope]:
    """Return the value of a variable that is assigned only once, and its scope; any other expression itself."""
    known = scope.lookup(expression.id) if isinstance(expression, ast.Name) else None
    values = [bind.value for bind in known[1] if bind.kind == "value"] if known else []
    return (values[0], known[0]) if known and len(known[1]) == 1 and values and values[0] else (expression, scope)


class _Trace:
    def __init__(self, project: Project, steps: Iterator[int] | None = None, seen: Iterable[Seen] = ()) -> None:
        self.project = project
        self._steps = iter(range(_MAX_STEPS)) if steps is None else steps
        self._seen = set(seen)
        self._entered: dict[Function, Origin] = {}  # functions being followed, and the call through which each was entered

    def found(self, expression: ast.expr, scope: Scope) -> list[Origin]:
        return list(dict.fromkeys(self.of(expression, scope)))

    def of(self, node: ast.expr | None, scope: Scope) -> Iterator[Origin]:
        if node is None:
            return
        entered = self._entered.get(scope.function) if scope.function is not None else None
        seen = node, entered.call if entered else None
        if seen in self._seen or next(self._steps, None) is None:
            return
        self._seen.add(seen)
        if isinstance(node, ast.Name):
            yield from self._name(node.id, scope)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node, scope)
        elif isinstance(node, ast.Call):
            yield from self._call(node, scope)
        elif isinstance(node, ast.Subscript):
            yield from self._item(node, scope)
        else:
            yield from self._parts(node, scope)

    def _parts(self, node: ast.expr, scope: Scope) -> Iterator[Origin]:
        parts: list[ast.expr] = []
        inner = scope
        if isinstance(node, ast.IfExp):
            parts = [node.body, node.orelse]
        elif isinstance(node, ast.BoolOp):
            parts = node.values
        elif isinstance(node, ast.NamedExpr | ast.Await | ast.Starred):
            parts = [node.value]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            parts = node.elts
        elif isinstance(node, ast.Dict):
            parts = node.values
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            inner = scope.source.scopes.inner[node]
            parts = [node.value if isinstance(node, ast.DictComp) else node.elt]
        for part in parts:
            yield from self.of(part, inner)

    def _name(self, name: str, scope: Scope) -> Iterator[Origin]:
        bound = scope.lookup(name)
        if bound is None:
            return
        home, binds = bound
        for bind in binds:
            yield from self._bind(name, bind, home)
        for _, value, inner in home.source.scopes.items.get(name, []):
            if inner.lookup(name) == bound:
                yield from self.of(value, inner)

    def _bind(self, name: str, bind: Bind, home: Scope) -> Iterator[Origin]:
        if bind.kind == "param":
            yield from self._parameter(name, home)
        elif bind.kind == "import":
            meaning = self.project.meaning(ast.Name(name), home)
            module = self.project.find(home.source, bind.module, bind.level)
            if meaning is None and module is not None and bind.name is not None:
                yield from self._name(bind.name, module.scopes.module)
        elif bind.kind in ("value", "element") and bind.value is not None:
            scope = home.source.scopes.of.get(bind.value, home)
            if bind.at is None or bind.kind == "element":
                yield from self.of(bind.value, scope)
            else:
                yield from self._unpacked(bind.value, bind.at, scope)

    def _unpacked(self, value: ast.expr, at: int, scope: Scope) -> Iterator[Origin]:
        """Follow one item of an unpacked value."""
        if isinstance(value, ast.Tuple | ast.List) and at < len(value.elts):
            yield from self.of(value.elts[at], scope)
        elif isinstance(value, ast.Call):
            callee = self.project.callee(value, scope)
            if isinstance(callee, FUNCTIONS):
                with self._inside(callee, Origin(value, scope)):
                    for returned, inner in self._returns(callee):
                        yield from self._unpacked(returned, at, inner)
            elif at < len(value.args) > 1:  # accelerator.prepare(model, optimizer, loader) returns its three arguments
                yield from self.of(value.args[at], scope)
            else:
                yield from self.of(value, scope)
        elif isinstance(value, ast.Name) and (found := scope.lookup(value.id)) is not None:
            for bind in found[1]:
                if bind.kind == "value" and bind.at is None and isinstance(bind.value, ast.Tuple | ast.List | ast.Call):
                    yield from self._unpacked(bind.value, at, found[0])
        else:
            yield from self.of(value, scope)

    def _parameter(self, name: str, home: Scope) -> Iterator[Origin]:
        function = home.node
        if not isinstance(function, FUNCTIONS):
            return
        entered = self._entered.get(function)
        calls = self.project.callers(function) if entered is None else [(entered.call, entered.scope)]
        for call, scope in calls:
            yield from self.of(self.project.passed(function, name, call), scope)

    @contextmanager
    def _inside(self, function: Function, call: Origin) -> Iterator[None]:
        """While a function is followed, resolve its parameters by this call's arguments only."""
        outer = self._entered.get(function)
        self._entered[function] = call
        try:
            yield
        finally:
            self._entered.pop(function)
            if outer is not None:
                self._entered[function] = outer

    def _returns(self, function: Function) -> Iterator[tuple[ast.expr, Scope]]:
        scopes = self.project.home(function).scopes
        for node in ast.walk(function):
            if isinstance(node, ast.Return | ast.Yield) and node.value is not None:
                inner = scopes.of[node]
                if inner.function is function:
                    yield node.value, inner

    def _call(self, call: ast.Call, scope: Scope) -> Iterator[Origin]:
        callee = self.project.callee(call, scope)
        if isinstance(callee, FUNCTIONS):
            with self._inside(callee, Origin(call, scope)):
                for value, inner in self._returns(callee):
                    yield from self.of(value, inner)
            return
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in RETURNS_ITSELF and not self.project.called(call, scope):
            yield from self.of(func.value, scope)
            return
        yield Origin(call, scope)
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            yield from self.of(argument, scope)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Iterator[Origin]:
        meaning = self.project.meaning(node.value, scope)
        if meaning is not None and meaning.source is not None:
            yield from self._name(node.attr, meaning.source.scopes.module)
            return
        kinds = self._classes(node.value, scope)
        assigned = False
        for kind in kinds:
            for value, at, inner in assigned_attributes(self.project, kind, node.attr):
                assigned = True
                yield from self.of(value, inner) if at is None else self._unpacked(value, at, inner)
            for item in kind.body:  # a property, or a method without its call
                if isinstance(item, FUNCTIONS) and item.name == node.attr:
                    assigned = True
                    for returned, inner in self._returns(item):
                        yield from self.of(returned, inner)
        if not assigned and (node.attr == "module" or not kinds):  # the object inside a wrapper
            yield from self.of(node.value, scope)

    def _classes(self, expression: ast.expr, scope: Scope) -> list[ast.ClassDef]:
        """Return the classes of the project that an expression may be an instance of."""
        owner = scope.owner
        if isinstance(expression, ast.Name) and expression.id in ("self", "cls") and owner is not None:
            return [owner[0]]
        created = _Trace(self.project, self._steps, self._seen).found(expression, scope)
        callees = [self.project.callee(item.call, item.scope) for item in created]
        return [item for item in dict.fromkeys(callees) if isinstance(item, ast.ClassDef)]

    def _item(self, node: ast.Subscript, scope: Scope) -> Iterator[Origin]:
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        chosen = list(self._with_key(node.value, key, scope)) if key is not None else []
        if not chosen:
            yield from self.of(node.value, scope)
        for value, inner in chosen:
            yield from self.of(value, inner)

    def _with_key(self, expression: ast.expr, key: object, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
        """Yield the values under a key in a literal, and those assigned to the key."""
        if isinstance(expression, ast.Dict):
            for name, value in zip(expression.keys, expression.values, strict=True):
                if isinstance(name, ast.Constant) and name.value == key:
                    yield value, scope
        elif isinstance(expression, ast.Tuple | ast.List) and isinstance(key, int) and 0 <= key < len(expression.elts):
            yield expression.elts[key], scope
        elif isinstance(expression, ast.Name) and (found := scope.lookup(expression.id)) is not None:
            for bind in found[1]:
                if bind.kind == "value" and bind.at is None and isinstance(bind.value, ast.Dict | ast.Tuple | ast.List):
                    yield from self._with_key(bind.value, key, found[0])
            for label, item, inner in found[0].source.scopes.items.get(expression.id, []):
                if label == key and inner.lookup(expression.id) == found:
                    yield item, inner


def assigned_attributes(project: Project, kind: ast.ClassDef, name: str) -> Iterator[tuple[ast.expr, int | None, Scope]]:
    """Yield the values assigned to `self.NAME` in a class and its bases, with their position in an unpacked value."""
    source = project.home(kind)
    for target, bind, scope in source.scopes.attributes.get(name, []):
        owner = scope.owner
        of_self = isinstance(target.value, ast.Name) and target.value.id == "self"
        if of_self and owner is not None and owner[0] is kind and bind.value is not None:
            yield bind.value, bind.at, scope
    for base in kind.bases:
        meaning = project.meaning(base, project.scope(kind, source))
        if meaning is not None and isinstance(meaning.node, ast.ClassDef) and meaning.node is not kind:
            yield from assigned_attributes(project, meaning.node, name)
