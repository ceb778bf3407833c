"""Read one file: its text, its syntax tree, and the scopes of its names.

Scripts are analysed with `ast`, which takes a thirtieth of the time of libcst with metadata. Only files that are changed are
parsed with libcst (`formatted.py`).
"""

from __future__ import annotations

import ast
import difflib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

from hasten.core.source_edits import UnwritableError

_BLOCKS = ("body", "orelse", "finalbody")


def parse(text: str) -> ast.Module:
    """Return the syntax tree of a module, checked like by the compiler. Raises SyntaxError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compiler warnings about the user's strings
        tree = ast.parse(text)
        compile(text, "<patched>", "exec", dont_inherit=True)
    return tree


class Source:
    """A file's text with its trees. Raises SyntaxError for invalid Python, RecursionError for too deep nesting.

    Args:
        path: The file.
        text: Its current text, without a byte order mark.
        before: The file before its last change; None for the file on disk, whose line numbers are used in messages.

    Attributes:
        path: As given.
        text: As given.
        tree: The `ast` tree.
        scopes: The scopes of its names.
    """

    def __init__(self, path: Path, text: str, before: Source | None = None) -> None:
        self.path, self.text, self._before = path, text, before
        self.tree = parse(text)
        self.scopes = read_scopes(self)

    @property
    def is_on_disk(self) -> bool:
        """Whether the text is still unchanged."""
        return self._before is None

    # Messages.

    def line_of(self, node: ast.expr | ast.stmt) -> str:
        """Return the location of a node in the file on disk, such as `train.py:12`, for messages."""
        return f"{self.path.name}:{self.disk_lines[min(node.lineno, len(self.disk_lines)) - 1]}"

    @cached_property
    def disk_lines(self) -> list[int]:
        """The line number on disk for each line, regardless of indentation. A new line gets that of a neighbour."""
        if self._before is None:
            return list(range(1, len(self.rows) + 1))
        before, now = ([line.strip() for line in source.rows] for source in (self._before, self))
        old, numbers = self._before.disk_lines, list[int]()
        for kind, first, end, start, stop in difflib.SequenceMatcher(None, before, now, autojunk=False).get_opcodes():
            if kind == "insert":  # a line that opens a block belongs to the following line
                numbers += [old[max(first - (not now[line].endswith(":")), 0)] for line in range(start, stop)]
            else:
                numbers += [old[min(first + line - start, end - 1)] for line in range(start, stop)]
        return numbers

    def segment(self, node: ast.expr) -> str:
        """Return the text of an expression."""
        return ast.get_source_segment(self.text, node) or ast.unparse(node)

    # The syntax tree.

    @cached_property
    def parent(self) -> dict[ast.AST, ast.AST]:
        """Node -> its parent node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def up(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the node and all nodes around it, up to the module."""
        holder: ast.AST | None = node
        while holder is not None:
            yield holder
            holder = self.parent.get(holder)

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that contains a node."""
        return next(item for item in self.up(node) if isinstance(item, ast.stmt))

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the list of statements that contains a statement."""
        holder = self.parent[statement]
        for name in _BLOCKS:
            block = getattr(holder, name, None)
            if isinstance(block, list) and statement in block:
                return block
        raise UnwritableError(f"no line can be added at {self.line_of(statement)}")

    @cached_property
    def rows(self) -> list[str]:
        """The lines of the text."""
        return self.text.split("\n")

    def column(self, line: int, column_bytes: int) -> int:
        """Convert a column of `ast`, which counts UTF-8 bytes, to characters."""
        return len(self.rows[line - 1].encode()[:column_bytes].decode())

    def indent(self, line: int) -> str:
        """Return the white space at the beginning of a line."""
        text = self.rows[line - 1]
        return text[: len(text) - len(text.lstrip())]


# Scopes.

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
ScopeNode: TypeAlias = (
    ast.Module | Function | ast.ClassDef | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, eq=False)
class Bind:
    """One place that binds a name.

    Attributes:
        kind: `value` (an assignment), `element` (a loop over `value`), `param`, `def`, `class`, `import`, `other`.
        node: The statement, argument, definition or alias.
        value: The value that is assigned or looped over.
        at: Position in an unpacked value; None for the whole value.
        module: The imported module, relative to `level`.
        level: Number of leading dots of the import.
        name: The name imported from the module; None for the module itself.
    """

    kind: Literal["value", "element", "param", "def", "class", "import", "other"]
    node: ast.AST
    value: ast.expr | None = None
    at: int | None = None
    module: str = ""
    level: int = 0
    name: str | None = None


@dataclass(eq=False)
class Scope:
    """The names of a module, class, function or comprehension.

    Attributes:
        node: The node that opens the scope.
        parent: The enclosing scope.
        source: The file.
        binds: Name -> the places that bind it, in order.
        stars: Modules, with the number of leading dots, that are imported with `*`.
        elsewhere: Names that belong to another scope through `global` or `nonlocal`.
    """

    node: ScopeNode
    parent: Scope | None
    source: Source
    binds: dict[str, list[Bind]] = field(default_factory=dict)
    stars: list[tuple[str, int]] = field(default_factory=list)
    elsewhere: dict[str, Scope] = field(default_factory=dict)

    def add(self, name: str, bind: Bind) -> None:
        """Record a place that binds a name."""
        self.elsewhere.get(name, self).binds.setdefault(name, []).append(bind)

    def lookup(self, name: str) -> tuple[Scope, list[Bind]] | None:
        """Return the scope that a name used here belongs to, and the places that bind it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.binds and (scope is self or not isinstance(scope.node, ast.ClassDef)):
                return scope, scope.binds[name]
            scope = scope.parent
        return None

    @property
    def module(self) -> Scope:
        """The scope of the file."""
        return self if self.parent is None else self.parent.module

    @property
    def function(self) -> Function | None:
        """The enclosing function; None at module or class level."""
        scope: Scope | None = self
        while scope is not None:
            if isinstance(scope.node, FUNCTIONS):
                return scope.node
            scope = scope.parent
        return None

    @property
    def owner(self) -> tuple[ast.ClassDef, Scope] | None:
        """The class of the enclosing method, and the class's scope."""
        scope: Scope | None = self
        while scope is not None:
            if isinstance(scope.node, ast.ClassDef):
                return scope.node, scope
            scope = scope.parent
        return None


@dataclass(eq=False)
class Scopes:
    """The scopes of one file.

    Attributes:
        module: The outermost scope.
        of: Node -> the scope in which it is evaluated.
        inner: Function, class, lambda or comprehension -> the scope that it opens.
        attributes: Attribute name -> (target, bind, scope) of each assignment to it, as in `self.model = ...`.
        items: Name -> (key, value, scope) of each assignment to one of its items, as in `loaders["train"] = ...`.
    """

    module: Scope
    of: dict[ast.AST, Scope] = field(default_factory=dict)
    inner: dict[ast.AST, Scope] = field(default_factory=dict)
    attributes: dict[str, list[tuple[ast.Attribute, Bind, Scope]]] = field(default_factory=dict)
    items: dict[str, list[tuple[object, ast.expr, Scope]]] = field(default_factory=dict)


def read_scopes(source: Source) -> Scopes:
    """Return the scopes of a file."""
    module = Scope(source.tree, None, source)
    scopes = Scopes(module)
    _Reader(scopes).visit_all(source.tree.body, module)
    return scopes


class _Reader:
    def __init__(self, scopes: Scopes) -> None:
        self.scopes = scopes

    def visit_all(self, nodes: list[ast.stmt], scope: Scope) -> None:
        for node in nodes:
            self.visit(node, scope)

    def visit(self, node: ast.AST, scope: Scope) -> None:
        self.scopes.of[node] = scope
        if isinstance(node, (*FUNCTIONS, ast.Lambda)):
            self._function(node, scope)
            return
        if isinstance(node, ast.ClassDef):
            scope.add(node.name, Bind("class", node))
            self._open(node, scope, [*node.decorator_list, *node.bases, *node.keywords], node.body)
            return
        if isinstance(node, _COMPREHENSIONS):
            self._open(node, scope, [], list(ast.iter_child_nodes(node)))
            return
        self._bind(node, scope)
        for child in ast.iter_child_nodes(node):
            self.visit(child, scope)

    def _open(self, node: ScopeNode, scope: Scope, outside: list[ast.AST], inside: list[ast.AST] | list[ast.stmt]) -> Scope:
        inner = self.scopes.inner[node] = Scope(node, scope, scope.source)
        for child in outside:
            self.visit(child, scope)
        for child in inside:
            self.visit(child, inner)
        return inner

    def _function(self, node: Function | ast.Lambda, scope: Scope) -> None:
        outside: list[ast.AST] = [item for item in (*node.args.defaults, *node.args.kw_defaults) if item is not None]
        inner = self.scopes.inner[node] = Scope(node, scope, scope.source)
        if not isinstance(node, ast.Lambda):
            scope.add(node.name, Bind("def", node))
            outside += node.decorator_list
        for child in outside:
            self.visit(child, scope)
        for parameter in _parameters(node.args):
            inner.add(parameter.arg, Bind("param", parameter))
        for child in [node.body] if isinstance(node, ast.Lambda) else node.body:
            self.visit(child, inner)

    def _bind(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            _bind_imports(node, scope)
        elif isinstance(node, ast.Global):
            scope.elsewhere.update(dict.fromkeys(node.names, scope.module))
        elif isinstance(node, ast.Nonlocal):
            for name in node.names:
                bound = scope.parent.lookup(name) if scope.parent else None
                scope.elsewhere[name] = bound[0] if bound else scope
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            scope.add(node.name, Bind("other", node))
        for target, kind, value in _assignments(node):
            self._target(target, Bind(kind, node, value), scope)

    def _target(self, target: ast.expr, bind: Bind, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope.add(target.id, bind)
        elif isinstance(target, ast.Attribute):
            self.scopes.attributes.setdefault(target.attr, []).append((target, bind, scope))
        elif isinstance(target, ast.Subscript):
            if isinstance(target.value, ast.Name) and isinstance(target.slice, ast.Constant) and bind.value is not None:
                self.scopes.items.setdefault(target.value.id, []).append((target.slice.value, bind.value, scope))
        elif isinstance(target, ast.Starred):
            self._target(target.value, Bind("other", bind.node), scope)
        elif isinstance(target, ast.Tuple | ast.List):
            for position, item in enumerate(target.elts):
                kind = bind.kind if bind.at is None else "other"  # deeper than one level is not followed
                self._target(item, Bind(kind, bind.node, bind.value, position), scope)


def _assignments(node: ast.AST) -> list[tuple[ast.expr, Literal["value", "element", "other"], ast.expr | None]]:
    """Return the assignments of a statement or part of it: target, kind, value."""
    if isinstance(node, ast.Assign):
        return [(target, "value", node.value) for target in node.targets]
    if isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        return [(node.target, "value", node.value)]
    if isinstance(node, ast.AugAssign):
        return [(node.target, "other", None)]
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        return [(node.target, "element", node.iter)]
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        return [(node.optional_vars, "value", node.context_expr)]
    return []


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    more = [item for item in (arguments.vararg, arguments.kwarg) if item is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *more]


def _bind_imports(node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
    for alias in node.names:
        if isinstance(node, ast.Import):
            module = alias.name if alias.asname else alias.name.partition(".")[0]
            scope.add(alias.asname or module, Bind("import", node, module=module))
        elif alias.name == "*":
            scope.stars.append((node.module or "", node.level))
        else:
            bind = Bind("import", node, module=node.module or "", level=node.level, name=alias.name)
            scope.add(alias.asname or alias.name, bind)
