"""Implement `hasten.core.source_edits` on a script's syntax trees, for optimizations that write themselves into it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch

from hasten.core.source_edits import NothingToWriteError, SourceEdits, UnwritableError
from hasten.script.patch.edits import Changes
from hasten.script.patch.find import Place, backward_calls, loops_around, the_optimizer, training_loader, training_loops
from hasten.script.patch.flow import Origin, only_value, origins
from hasten.script.patch.model import Model, the_model
from hasten.script.patch.project import Project
from hasten.script.patch.source import Scope
from hasten.script.patch.step import Step, forward_step, plain_inputs

ACCELERATORS = ("cuda", "mps", "xpu")
_DEVICES = ("device", "gpu", "rank", "cuda")
_LOSS_NAMES = ("loss", "train_loss", "loss_value", "step_loss")
_NAME = re.compile(r"\{([A-Za-z_][\w.]*)\}")


def script_edits(changes: Changes) -> SourceEdits:
    """Return the view of a script that an optimization edits."""
    return _Script(changes)


class _Call:
    """A call in the script; see SourceCall.

    Args:
        changes: Records the edits.
        call: The call.
        scope: Its scope.
        parameters: Names of the positional parameters of the called function.
        role: What the call creates, for messages.
    """

    def __init__(
        self, changes: Changes, call: ast.Call, scope: Scope, parameters: Sequence[str] = (), role: str = "call"
    ) -> None:
        self._changes, self._call, self._scope, self._parameters, self._role = changes, call, scope, parameters, role

    @property
    def place(self) -> str:
        return self._scope.source.line_of(self._call)

    @property
    def name(self) -> str:
        return self._changes.project.called(self._call, self._scope).rpartition(".")[2]

    @cached_property
    def given(self) -> Mapping[str, str]:
        return {name: self._scope.source.segment(value) for name, value in self._arguments().items()}

    def _arguments(self) -> dict[str, ast.expr]:
        starred = [isinstance(item, ast.Starred) for item in self._call.args]
        plain = self._call.args[: starred.index(True)] if any(starred) else self._call.args
        named = {keyword.arg: keyword.value for keyword in self._call.keywords if keyword.arg is not None}
        return {**dict(zip(self._parameters, plain, strict=False)), **named}

    def set(self, values: Mapping[str, str], where_given: Mapping[str, str] | None = None) -> str:
        wanted = {**values, **{name: value for name, value in (where_given or {}).items() if name in self.given}}
        named = {name: value for name, value in wanted.items() if _NAME.fullmatch(value)}
        wanted |= {name: _spelled(self._changes, self._scope, value) for name, value in named.items()}
        changed = self._changes.set_arguments(self._call, self._scope, wanted, self._parameters)
        if not changed:
            raise NothingToWriteError(f"the {self._role} already has this setting ({self.place})")
        return f"{', '.join(changed)} at {self.place}"

    def remove(self, name: str) -> None:
        self._changes.remove_argument(self._call, self._scope.source, self._arguments()[name])


class _Model:
    """The variable that holds the model; see SourceModel."""

    def __init__(self, changes: Changes, model: Model) -> None:
        self._changes, self._project, self._model = changes, changes.project, model

    @property
    def name(self) -> str:
        return self._model.text

    @property
    def is_torchs_own(self) -> bool:
        roots = [item for item in self._model.calls if not _is_parallel(self._project, item)]
        return bool(roots) and self._project.called(roots[0].call, roots[0].scope).startswith("torch.nn.")

    @property
    def is_parallel(self) -> bool:
        return any(_is_parallel(self._project, item) for item in self._model.calls)

    def calls(self, *methods: str) -> list[str]:
        return [
            scope.source.line_of(call)
            for call, scope in self._project.calls
            if isinstance(call.func, ast.Attribute)
            and call.func.attr in methods
            and not self._project.called(call, scope)
            and not (isinstance(call.func.value, ast.Attribute) and call.func.value.attr == "module")
            and self._is_model(call.func.value, scope)
        ]

    def _is_model(self, expression: ast.expr, scope: Scope) -> bool:
        made = {item.call for item in origins(self._project, expression, scope)}
        return ast.unparse(expression) == self.name or bool(made & {item.call for item in self._model.calls})

    def add(self, line: str, *, wrapped: bool) -> str:
        place = self._model.last if wrapped else self._model.first
        at = place or self._model.before
        text = _spelled(self._changes, at.scope, line)
        if not isinstance(at.node, ast.stmt):
            raise UnwritableError(f"{at.words} is not a statement", text)
        if place is None:
            self._changes.before(at.node, at.scope.source, text)
            return f"before {at.words}"
        self._changes.after(at.node, at.scope.source, text)
        return f"after {at.words}"


class _Forward:
    """The forward pass including the loss; see SourceForward."""

    def __init__(self, changes: Changes, step: Step) -> None:
        self._changes, self._project, self._step = changes, changes.project, step

    @property
    def place(self) -> str:
        source = self._step.scope.source
        first, last = source.line_of(self._step.statements[0]), source.line_of(self._step.statements[-1])
        return first if first == last else f"{first} to {last}"

    @property
    def library(self) -> str:
        return self._step.library

    @property
    def inputs(self) -> list[str]:
        return plain_inputs(self._step)

    @property
    def device_type(self) -> str:
        scope = self._step.scope
        known = scope.lookup("device")
        if known is not None:
            made = origins(self._project, ast.Name("device"), scope)
            if made and all(self._project.called(item.call, item.scope) == "torch.device" for item in made):
                return "device.type"
            texts = [text for bind in known[1] if bind.kind == "value" for text in _texts(bind.value)]
            if texts and None not in texts and len(known[1]) == 1:
                return "device"
        if not any(_names_accelerator(node) for source in self._project.sources.values() for node in ast.walk(source.tree)):
            return '"cpu"'
        if not self._step.calls:
            raise UnwritableError("neither the device nor the model has a name where the loss is computed")
        return f"next({ast.unparse(self._step.calls[0].func)}.parameters()).device.type"

    def context(self, names: Sequence[str], *parameters: str) -> _Call | None:
        scope = self._step.scope
        around = list(scope.source.up(self._step.statements[0]))
        inside = [node for statement in self._step.statements for node in ast.walk(statement)]
        for node in (*inside, *around):
            for item in node.items if isinstance(node, ast.With | ast.AsyncWith) else ():
                value, home = only_value(item.context_expr, scope)
                if isinstance(value, ast.Call) and self._project.called(value, home) in names:
                    return _Call(self._changes, value, home, parameters)
        return None

    def wrap(self, header: str) -> None:
        step = self._step
        line = _spelled(self._changes, step.scope, header)
        name = next((name for name in _LOSS_NAMES if step.scope.lookup(name) is None), "") if step.inline else ""
        if step.inline and not name:
            raise UnwritableError("all names for the loss are in use", line)
        self._changes.wrap(step.statements, step.scope, line, name)

    def before(self, *lines: str) -> str:
        first, scope = self._step.statements[0], self._step.scope
        self._changes.before(first, scope.source, *(_spelled(self._changes, scope, line) for line in lines))
        return f"before {scope.source.line_of(first)}"


class _Loop:
    """A training loop; see SourceLoop."""

    def __init__(self, changes: Changes, loop: Place) -> None:
        self._changes, self._loop = changes, loop

    @property
    def place(self) -> str:
        return self._loop.words

    def before(self, *lines: str) -> None:
        source, scope = self._loop.scope.source, self._loop.scope
        texts = [_spelled(self._changes, scope, line) for line in lines]
        self._changes.before(source.statement(self._loop.node), source, *texts)


class _Script:
    """A script that one optimization edits; see SourceEdits."""

    def __init__(self, changes: Changes) -> None:
        self._changes, self._project = changes, changes.project

    @property
    def script(self) -> str:
        return self._project.script.path.name

    # Queries.

    def calls(self, *names: str) -> list[_Call]:
        return [_Call(self._changes, call, scope) for call, scope in self._project.calls_of(*names)]

    def method_calls(self, method: str, *parameters: str) -> list[_Call]:
        return [
            _Call(self._changes, call, scope, parameters)
            for call, scope in self._project.calls
            if isinstance(call.func, ast.Attribute) and call.func.attr == method
        ]

    def mentions(self, name: str) -> list[str]:
        return [
            source.line_of(node)
            for source in self._project.sources.values()
            for node, scope in source.scopes.of.items()
            if isinstance(node, ast.Attribute) and self._project.dotted(node, scope) == name
        ]

    def assignments(self, name: str) -> list[tuple[str, str]]:
        return [(scope.source.line_of(value), scope.source.segment(value)) for value, scope in self._assigned(name)]

    def _assigned(self, name: str) -> list[tuple[ast.expr, Scope]]:
        assigned = []
        for source in self._project.sources.values():
            for target, bind, scope in source.scopes.attributes.get(name.rpartition(".")[2], []):
                if bind.value is not None and self._project.dotted(target, scope) == name:
                    assigned.append((bind.value, scope))
        return assigned

    def loader(self) -> _Call:
        place = training_loader(self._project)
        return self._making(place, torch.utils.data.DataLoader, "loader")

    def optimizer(self) -> _Call:
        place, name = the_optimizer(self._project)
        return self._making(place, getattr(torch.optim, name), "optimizer")

    def _making(self, place: Place, kind: type, role: str) -> _Call:
        parameters = list(inspect.signature(kind).parameters)
        if not isinstance(place.node, ast.Call):
            raise UnwritableError(f"{place.words} is not a call")
        return _Call(self._changes, place.node, place.scope, parameters, role)

    def model(self) -> _Model:
        return _Model(self._changes, the_model(self._project))

    def forward(self) -> _Forward:
        return _Forward(self._changes, forward_step(self._project))

    def training_loops(self) -> list[_Loop]:
        return [_Loop(self._changes, loop) for loop in training_loops(self._project)]

    def copies_to_device(self) -> list[_Call]:
        copies: dict[ast.Call, Scope] = {}
        for place in backward_calls(self._project):
            for loop in list(loops_around(self._project, place))[:1]:
                scopes = loop.scope.source.scopes
                for node in ast.walk(loop.node):
                    if isinstance(node, ast.Call) and _copies(node) and not self._project.defines_method(_method(node)):
                        copies[node] = scopes.of[node]
        return [_Call(self._changes, call, scope) for call, scope in copies.items()]

    def trains_on_import(self) -> str:
        for place in backward_calls(self._project):
            for loop in loops_around(self._project, place):
                source = loop.scope.source
                if source is self._project.script and loop.scope.parent is None:
                    guards = [node for node in source.up(loop.node) if isinstance(node, ast.If)]
                    if not any("__name__" in ast.unparse(guard.test) for guard in guards):
                        return loop.words
        return ""

    # Edits.

    def call_once(self, name: str, value: str) -> str:
        known = self._project.calls_of(name)
        if len(known) > 1:
            places = ", ".join(scope.source.line_of(call) for call, scope in known)
            raise UnwritableError(f"{name} is called in more than one place ({places})", f"{name}({value})")
        for call, scope in known:
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            if len(given) != 1:
                raise UnwritableError(f"{scope.source.line_of(call)} calls it with other arguments", f"{name}({value})")
            return self._replaced(given[0], scope, value, name)
        return self.at_the_start(f"{{{name}}}({value})", said=f"{name}({value})")

    def assign_once(self, values: Mapping[str, str]) -> str:
        changed, lines = [], []
        for name, value in values.items():
            known = self._assigned(name)
            if len(known) > 1:
                raise UnwritableError(f"{name} is set in more than one place")
            if known:
                changed.append(self._replaced(*known[0], value, name))
            else:
                lines.append((name, value))
        if lines:
            said = ", ".join(f"{name} = {value}" for name, value in lines)
            changed.append(self.at_the_start(*(f"{{{name}}} = {value}" for name, value in lines), said=said))
        return ", ".join(changed)

    def at_the_start(self, *lines: str, said: str) -> str:
        script = self._project.script
        module = script.scopes.module
        texts = [_spelled(self._changes, module, line, top=True) for line in lines]
        text, place = "\n".join(texts), f"{said} below the imports of {script.path.name}"
        if text in script.text:
            return place
        for name in _new_names(text):
            if module.lookup(name) is not None:
                raise UnwritableError(f"`{name}` means something else in {script.path.name}", *texts)
        self._changes.setting(script, *texts)
        return place

    def _replaced(self, value: ast.expr, scope: Scope, new: str, name: str) -> str:
        was, place = scope.source.segment(value), scope.source.line_of(value)
        if was == new:
            raise NothingToWriteError(f"{name} is already {new} ({place})")
        self._changes.replace(value, scope.source, new)
        return f"{name}: {new} (was {was}) at {place}"


def _spelled(changes: Changes, scope: Scope, line: str, *, top: bool = False) -> str:
    """Return a line with the names in braces replaced by their spelling in a scope."""
    return _NAME.sub(lambda match: changes.spell(match[1], scope, top=top), line)


def _new_names(text: str) -> list[str]:
    """Return the names that the statements of a text define."""
    names = []
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.FunctionDef):
            names.append(statement.name)
        elif isinstance(statement, ast.Assign):
            names += [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return names


def _is_parallel(project: Project, origin: Origin) -> bool:
    return project.called(origin.call, origin.scope).startswith("torch.nn.parallel.")


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _copies(call: ast.Call) -> bool:
    """Return whether a call copies a value to a device without specifying `non_blocking`."""
    func = call.func
    if not isinstance(func, ast.Attribute) or any(part.arg in ("non_blocking", None) for part in call.keywords):
        return False
    if not isinstance(func.value, ast.Name | ast.Subscript | ast.Attribute):
        return False
    if func.attr == "cuda":
        return len(call.args) < 2
    if func.attr != "to" or len(call.args) + len(call.keywords) != 1:
        return False
    device = ast.unparse(call.args[0] if call.args else call.keywords[0].value).lower()
    return any(word in device for word in _DEVICES)


def _texts(value: ast.expr | None) -> list[str | None]:
    """Return the strings that an expression may be, if they are plain device types; None for each other value."""
    if isinstance(value, ast.IfExp):
        return _texts(value.body) + _texts(value.orelse)
    plain = isinstance(value, ast.Constant) and isinstance(value.value, str) and ":" not in value.value
    return [str(value.value)] if plain and isinstance(value, ast.Constant) else [None]


def _names_accelerator(node: ast.AST) -> bool:
    """Return whether a node refers to devices, so that the script may run on another device than the CPU."""
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        return name in (*ACCELERATORS, "device", "accelerator")
    if isinstance(node, ast.arg | ast.keyword):
        return node.arg == "device"
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, str) and value.partition(":")[0] in ACCELERATORS
