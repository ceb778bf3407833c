"""Read a script and the files that it imports from its own folder tree, or from folders above it that Python searches.

Names are resolved across these files.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from hasten.script.patch.source import FUNCTIONS, Bind, Function, Scope, Source

MAX_FILES = 64
"""Largest number of files that are read."""
MAX_DEPTH = 12
"""Number of assignments, imports and calls through which a name is followed."""

MODULES_ELSEWHERE = ("LightningModule", "PreTrainedModel")
"""Classes of other libraries that derive from torch.nn.Module."""

_INSTALLED = ("site-packages", "dist-packages")

OTHER_NAMES = {
    "lightning.Fabric": ("lightning.fabric.Fabric",),
    "lightning.Trainer": ("lightning.pytorch.Trainer", "pytorch_lightning.Trainer"),
}
"""Other full names of the same classes."""


@dataclass(frozen=True)
class Meaning:
    """The meaning of a name: something external (`dotted`), or a definition or module of the project.

    Attributes:
        dotted: The full external name, such as `torch.utils.data.DataLoader`; empty for names of the project.
        node: A function or class of the project.
        source: A module of the project.
    """

    dotted: str = ""
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None = None
    source: Source | None = None


class Project:
    """A script and its modules.

    Args:
        script: The script's file.
        sources: Path -> file, for the script and all files that are followed.

    Attributes:
        script: The script.
        sources: All files, the script first.
        notes: Cache of analyses: (question, node) -> result.
    """

    def __init__(self, script: Path, sources: Mapping[Path, Source]) -> None:
        self.sources, self.script = dict(sources), sources[script]
        self.notes: dict[tuple[str, ast.AST], Any] = {}
        self._bases = search_bases(script)
        self._files: dict[tuple[Source, str, int], Source | None] = {}
        self._names: dict[tuple[Scope, str], Meaning | None] = {}

    def scope(self, node: ast.AST, source: Source) -> Scope:
        """Return the scope in which a node is evaluated."""
        return source.scopes.of[node]

    @cached_property
    def calls(self) -> list[tuple[ast.Call, Scope]]:
        """All calls in the project, ordered by file and position."""
        ordered = []
        for source in self.sources.values():
            nodes = source.scopes.of
            calls = [(node, scope) for node, scope in nodes.items() if isinstance(node, ast.Call)]
            ordered += sorted(calls, key=lambda item: (item[0].lineno, item[0].col_offset))
        return ordered

    def calls_of(self, *dotted: str) -> list[tuple[ast.Call, Scope]]:
        """Return the calls of external functions or classes with these full names, or others that they have."""
        names = {*dotted, *(other for name in dotted for other in OTHER_NAMES.get(name, ()))}
        return [(call, scope) for call, scope in self.calls if self.called(call, scope) in names]

    # Names.

    def dotted(self, expression: ast.expr, scope: Scope) -> str:
        """Return the full external name that an expression refers to; "" for anything else."""
        meaning = self.meaning(expression, scope)
        return "" if meaning is None else meaning.dotted

    def called(self, call: ast.Call, scope: Scope) -> str:
        """Return the full external name of the function that a call calls; "" for anything else."""
        key = ("called", call)
        if key not in self.notes:
            self.notes[key] = self.dotted(call.func, scope)
        name: str = self.notes[key]
        return name

    def meaning(self, expression: ast.expr, scope: Scope, depth: int = 0) -> Meaning | None:
        """Return the meaning of a name or dotted name; None if it is a value known only at run time."""
        if depth > MAX_DEPTH:
            return None
        if isinstance(expression, ast.Name):
            return self._name(expression.id, scope, depth)
        if not isinstance(expression, ast.Attribute):
            return None
        inner = self.meaning(expression.value, scope, depth + 1)
        if inner is None:
            owner = scope.owner
            own = isinstance(expression.value, ast.Name) and expression.value.id in ("self", "cls") and owner is not None
            return self._method(owner[0], owner[1].source, expression.attr, depth) if own and owner else None
        if inner.source is not None:
            return self._member(inner.source, expression.attr, depth + 1)
        if inner.node is not None:
            home = self.home(inner.node)
            return self._method(inner.node, home, expression.attr, depth) if isinstance(inner.node, ast.ClassDef) else None
        return Meaning(f"{inner.dotted}.{expression.attr}")

    def home(self, node: ast.AST) -> Source:
        """Return the file of a definition."""
        return self._homes[node]

    @cached_property
    def _homes(self) -> dict[ast.AST, Source]:
        definitions = (*FUNCTIONS, ast.ClassDef)
        return {
            node: source for source in self.sources.values() for node in source.scopes.of if isinstance(node, definitions)
        }

    def _name(self, name: str, scope: Scope, depth: int) -> Meaning | None:
        bound = scope.lookup(name)
        if bound is None:
            return self._star(name, scope.module, depth)
        key = (bound[0], name)
        if key not in self._names:
            self._names[key] = None  # ends the recursion for a name that its own definition uses
            meanings = {self._bound(bind, bound[0], depth) for bind in bound[1]}
            self._names[key] = meanings.pop() if len(meanings) == 1 else None  # with several meanings, it is unknown
        return self._names[key]

    def _bound(self, bind: Bind, scope: Scope, depth: int) -> Meaning | None:
        if bind.kind in ("def", "class") and isinstance(bind.node, (*FUNCTIONS, ast.ClassDef)):
            return Meaning(node=bind.node)
        if bind.kind == "import":
            return self._imported(bind, scope.source, depth)
        if bind.kind == "value" and bind.at is None and isinstance(bind.value, ast.Name | ast.Attribute):
            return self.meaning(bind.value, scope, depth + 1)
        return None

    def _imported(self, bind: Bind, source: Source, depth: int) -> Meaning | None:
        module = self.find(source, bind.module, bind.level)
        if bind.name is None:
            return Meaning(bind.module) if module is None else Meaning(source=module)
        if module is not None and (member := self._member(module, bind.name, depth + 1)) is not None:
            return member
        submodule = self.find(source, f"{bind.module}.{bind.name}" if bind.module else bind.name, bind.level)
        if submodule is not None:
            return Meaning(source=submodule)
        return None if bind.level or module is not None else Meaning(f"{bind.module}.{bind.name}")

    def _member(self, source: Source, name: str, depth: int) -> Meaning | None:
        if depth > MAX_DEPTH:
            return None
        meaning = self._name(name, source.scopes.module, depth)
        if meaning is None and source.path.name == "__init__.py":
            inner = self.sources.get(source.path.parent / f"{name}.py")
            return None if inner is None else Meaning(source=inner)
        return meaning

    def _star(self, name: str, scope: Scope, depth: int) -> Meaning | None:
        for module, level in scope.stars:
            inner = self.find(scope.source, module, level)
            if inner is not None and depth <= MAX_DEPTH:
                meaning = self._member(inner, name, depth + 1)
            else:
                torch_has_it = module.partition(".")[0] == "torch" and hasattr(import_module(module), name)
                meaning = Meaning(f"{module}.{name}") if torch_has_it else None
            if meaning is not None:
                return meaning
        return None

    def _method(self, kind: ast.ClassDef, source: Source, name: str, depth: int) -> Meaning | None:
        for item in kind.body:
            if isinstance(item, FUNCTIONS) and item.name == name:
                return Meaning(node=item)
        for base in kind.bases:
            meaning = self.meaning(base, self.scope(kind, source), depth + 1)
            if meaning is not None and isinstance(meaning.node, ast.ClassDef) and depth <= MAX_DEPTH:
                method = self._method(meaning.node, self.home(meaning.node), name, depth + 1)
                if method is not None:
                    return method
        return None

    def is_module_class(self, kind: ast.ClassDef, depth: int = 0) -> bool:
        """Return whether a class of the project derives from torch.nn.Module, as far as can be seen."""
        scope = self.scope(kind, self.home(kind))
        for base in kind.bases:
            meaning = self.meaning(base, scope)
            if meaning is None or depth > MAX_DEPTH:
                continue
            if meaning.dotted.startswith("torch.nn.") or meaning.dotted.rpartition(".")[2] in MODULES_ELSEWHERE:
                return True
            if isinstance(meaning.node, ast.ClassDef) and self.is_module_class(meaning.node, depth + 1):
                return True
        return False

    # Files and calls.

    def find(self, source: Source, module: str, level: int) -> Source | None:
        """Return the project file that an import in `source` refers to."""
        key = (source, module, level)
        if key not in self._files:
            paths = candidates(source.path, module, level, self._bases)
            self._files[key] = next((self.sources[path] for path in paths if path in self.sources), None)
        return self._files[key]

    @cached_property
    def _callers(self) -> dict[ast.AST, list[tuple[ast.Call, Scope]]]:
        callers: dict[ast.AST, list[tuple[ast.Call, Scope]]] = {}
        for call, scope in self.calls:
            node = self.callee(call, scope)
            if node is not None:
                callers.setdefault(node, []).append((call, scope))
        return callers

    @cached_property
    def _methods(self) -> dict[str, list[Function]]:
        methods: dict[str, list[Function]] = {}
        for source in self.sources.values():
            for node in source.scopes.of:
                if isinstance(node, ast.ClassDef):
                    for item in node.body:
                        if isinstance(item, FUNCTIONS):
                            methods.setdefault(item.name, []).append(item)
        return methods

    def _method_by_name(self, call: ast.Call) -> Function | None:
        """Return the method that `trainer.fit(...)` calls, if exactly one class defines it and torch modules do not."""
        if not isinstance(call.func, ast.Attribute):
            return None
        known = self._methods.get(call.func.attr, [])
        return known[0] if len(known) == 1 and not hasattr(import_module("torch.nn").Module, call.func.attr) else None

    def defines_method(self, name: str) -> bool:
        """Return whether a class of the project has a method of this name, which may differ from torch's."""
        return name in self._methods

    def callee(self, call: ast.Call, scope: Scope) -> Function | ast.ClassDef | None:
        """Return the function, method or class of the project that a call calls."""
        key = ("callee", call)
        if key not in self.notes:
            meaning = self.meaning(call.func, scope)
            self.notes[key] = meaning.node if meaning else self._method_by_name(call)
        node: Function | ast.ClassDef | None = self.notes[key]
        return node

    def callers(self, node: ast.AST) -> list[tuple[ast.Call, Scope]]:
        """Return the calls of a function or class of the project. Calls of a class count for its `__init__`."""
        if isinstance(node, FUNCTIONS) and node.name == "__init__":
            owner = self.home(node).parent.get(node)
            return self._callers.get(owner, []) if owner is not None else []
        return self._callers.get(node, [])

    def passed(self, function: Function, name: str, call: ast.Call) -> ast.expr | None:
        """Return the expression that a call passes for a parameter; None for a default, or if it cannot be determined."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        names = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
        if name not in names or any(isinstance(item, ast.Starred) for item in call.args):
            return None
        method = isinstance(self.home(function).parent.get(function), ast.ClassDef)
        static = any(isinstance(item, ast.Name) and item.id == "staticmethod" for item in function.decorator_list)
        position = names.index(name) - (1 if method and not static else 0)
        return call.args[position] if 0 <= position < len(call.args) else None


def follow(script: Path) -> tuple[dict[Path, Source], dict[Path, str]]:
    """Read the script and the files that it imports from the folders of `search_bases`.

    Returns:
        Path -> file, for files that can be changed, and path -> reason, for the others.
    """
    sources: dict[Path, Source] = {}
    refused: dict[Path, str] = {}
    bases, waiting = search_bases(script), [script]
    while waiting and len(sources) < MAX_FILES:
        path = waiting.pop(0)
        if path in sources or path in refused:
            continue
        try:
            source = Source(path, read_text(path))
            imported = [file for file in _imported_files(source, bases) if file.is_file()]
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            refused[path] = f"{path.name} cannot be read as Python in UTF-8: {error}"
            continue
        sources[path] = source
        waiting += imported
    return sources, refused


def read_text(path: Path) -> str:
    """Return the text of a file without its byte order mark. Raises ValueError for unsupported encodings or line ends."""
    text = path.read_bytes().decode("utf-8").removeprefix("\ufeff")
    if "\r" in text.replace("\r\n", ""):
        raise ValueError("its lines end with a carriage return only")
    return text


def search_bases(script: Path) -> tuple[Path, ...]:
    """Return the folders in which absolute imports of a script are searched.

    These are its own, the one around its package, and those above it that Python searches, by PYTHONPATH or an editable
    installation: scripts in `tools/` train with the package next to that folder. Installed packages are not followed.
    """
    folder = script.parent
    while (folder / "__init__.py").is_file() and folder.parent != folder:
        folder = folder.parent
    first = 0 if sys.flags.safe_path else 1  # without `python -P`, the first entry is the folder of Hasten's own command
    searched = {Path(entry).resolve() for entry in sys.path[first:] if entry}
    above = [parent for parent in script.parents if parent in searched and parent.name not in _INSTALLED]
    return tuple(dict.fromkeys((script.parent, folder, *above)))


def candidates(importer: Path, module: str, level: int, bases: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the files that an import may refer to, within the given folders only."""
    parts = [part for part in module.split(".") if part]
    roots = [importer.parents[level - 1]] if 0 < level <= len(importer.parents) else list(bases)
    for root in roots:
        if not any(root.is_relative_to(base) for base in bases):
            continue
        target = root.joinpath(*parts)
        yield target / "__init__.py"
        if parts:
            yield target.with_name(f"{target.name}.py")


def _imported_files(source: Source, bases: tuple[Path, ...]) -> Iterator[Path]:
    for node in ast.walk(source.tree):
        names: list[tuple[str, int]] = []
        if isinstance(node, ast.Import):
            names = [(alias.name, 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names = [(base, node.level), *((f"{base}.{alias.name}".strip("."), node.level) for alias in node.names)]
        for name, level in names:
            parts = name.split(".")
            for count in range(1, len(parts) + 1):  # a package is imported before its modules
                yield from candidates(source.path, ".".join(parts[:count]), level, bases)
