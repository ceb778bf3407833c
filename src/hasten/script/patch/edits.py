"""Edit a source file: arguments of a call, whole lines, a `with` block, an import.

Edits are first recorded by node, and then applied in one pass over the libcst tree.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from hasten.core.source_edits import UnwritableError
from hasten.script.patch import arguments
from hasten.script.patch.arguments import Change, replacer
from hasten.script.patch.formatted import Formatted
from hasten.script.patch.imports import is_setting, last_import, visible_names
from hasten.script.patch.project import Project
from hasten.script.patch.source import Scope, Source

_IMPORTED_APART = ("torch.nn.attention.",)
"""Modules that `import torch` does not load."""
_EMPTY_LINE = cst.EmptyLine(indent=False)

Statements = Sequence[cst.BaseStatement | cst.BaseSmallStatement]


@dataclass
class _FileEdits:
    """The edits of one file.

    Attributes:
        file: The file's tree.
        changes: Node -> its changes.
        before: Statement -> lines to add before it.
        after: Statement -> lines to add after it; None -> lines at the beginning of the file.
        withs: First statement of a block -> the last one, the `with` statement, and lines that follow it.
        imports: Module -> names to import from it; no names for the module itself.
        gap_before: Statements that need an empty line before them.
        tops: Top-level statements that contain changes.
    """

    file: Formatted
    changes: dict[cst.CSTNode, list[Change]] = field(default_factory=dict)
    before: dict[cst.CSTNode, list[cst.BaseStatement]] = field(default_factory=dict)
    after: dict[cst.CSTNode | None, list[cst.BaseStatement]] = field(default_factory=dict)
    withs: dict[cst.CSTNode, tuple[cst.CSTNode, cst.With, list[cst.BaseStatement]]] = field(default_factory=dict)
    imports: dict[str, list[str]] = field(default_factory=dict)
    gap_before: set[cst.CSTNode] = field(default_factory=set)
    tops: set[cst.CSTNode] = field(default_factory=set)


class Changes:
    """The edits of one optimization, by file.

    Attributes:
        project: The project to change.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self._files: dict[Source, _FileEdits] = {}

    def _of(self, source: Source) -> _FileEdits:
        return self._files.setdefault(source, _FileEdits(Formatted(source)))

    def _change(self, source: Source, node: cst.CSTNode, change: Change) -> None:
        self._of(source).changes.setdefault(node, []).append(change)

    def _expression(self, node: ast.expr, source: Source) -> cst.BaseExpression:
        self._of(source).tops.add(self._of(source).file.top(node))
        return self._of(source).file.expression(node)

    def _lines(self, statement: ast.stmt, source: Source) -> cst.BaseStatement:
        self._of(source).tops.add(self._of(source).file.top(statement))
        return self._of(source).file.lines(statement)

    def texts(self) -> dict[Source, str]:
        """Return the changed files with their new texts."""
        return {source: self._text(source, edits) for source, edits in self._files.items()}

    def _text(self, source: Source, edits: _FileEdits) -> str:
        anchor, joined = last_import(self.project, source)
        lines = [
            f"from {module} import {', '.join(sorted(names))}" if names else f"import {module}"
            for module, names in edits.imports.items()
        ]
        if lines:
            statements = _parsed(lines)
            if anchor is not None and not joined:
                statements[0] = _with_gap(statements[0])
            key = None if anchor is None else self._of(source).file.lines(anchor)
            edits.after[key] = [*statements, *edits.after.get(key, [])]
        module = edits.file.module.visit(_Writer(edits))
        return module.with_changes(has_trailing_newline=module.has_trailing_newline or not source.text).code

    # Arguments.

    def set_arguments(self, call: ast.Call, scope: Scope, values: Mapping[str, str], order: Sequence[str] = ()) -> list[str]:
        """Set keyword arguments of a call, or change the values of existing arguments.

        Args:
            call: The call.
            scope: Its scope.
            values: Name -> source text of the value.
            order: Names of the positional arguments.

        Returns:
            A description of each change; empty if all arguments are set already.

        Raises:
            UnwritableError: The call unpacks arguments in a way that hides which ones are set.
        """
        source = scope.source
        node = cst.ensure_type(self._expression(call, source), cst.Call)
        words, missing = [], {}
        for name, value in values.items():
            at = arguments.index_of(node, name, order)
            if at is None:
                missing[name] = value
            elif (was := self._of(source).file.code(node.args[at].value)) != value:
                self._change(source, node, arguments.setter(at, value))
                words.append(f"{name}={value} (was {was})")
        if missing:
            words += self._append(call, node, source, missing)
        return words

    def _append(self, call: ast.Call, node: cst.Call, source: Source, missing: dict[str, str]) -> list[str]:
        unpacked = [arg for arg in node.args if arg.star == "**"]
        if len(unpacked) > 1:
            raise UnwritableError(f"{source.line_of(call)} unpacks more than one `**` argument")
        if unpacked:
            inner = unpacked[0].value
            if isinstance(inner, cst.Dict):
                return self._set_items(inner, source, missing)
            self._change(source, inner, lambda value: arguments.merged(value, missing))
        else:
            length = len(", ".join(f"{name}={value}" for name, value in missing.items()))
            layout = arguments.layout_of(source, call, node, length)
            self._change(source, node, lambda node: arguments.appended(node, missing, layout))
        return [f"{name}={value}" for name, value in missing.items()]

    def _set_items(self, literal: cst.Dict, source: Source, wanted: dict[str, str]) -> list[str]:
        words, missing = [], {}
        for name, value in wanted.items():
            known = arguments.items_named(literal, name)
            if not known:
                missing[name] = value
            elif (was := self._of(source).file.code(known[-1].value)) != value:
                self._change(source, known[-1].value, replacer(cst.parse_expression(value)))
                words.append(f"{name}={value} (was {was})")
        if missing:
            self._change(source, literal, lambda node: arguments.with_items(node, missing))
        return words + [f"{name}={value}" for name, value in missing.items()]

    def remove_argument(self, call: ast.Call, source: Source, value: ast.expr) -> None:
        """Remove an argument from a call."""
        node, argument = cst.ensure_type(self._expression(call, source), cst.Call), self._of(source).file.expression(value)
        at = next(place for place, arg in enumerate(node.args) if arg.value is argument)
        self._change(source, node, lambda call: arguments.without(call, at))

    def replace(self, value: ast.expr, source: Source, new: str) -> None:
        """Replace an expression by a text."""
        self._change(source, self._expression(value, source), replacer(cst.parse_expression(new)))

    # Lines.

    def before(self, statement: ast.stmt, source: Source, *lines: str) -> None:
        """Add lines before a statement."""
        self._of(source).before.setdefault(self._lines(statement, source), []).extend(_parsed(lines))

    def after(self, statement: ast.stmt, source: Source, *lines: str) -> None:
        """Add lines after a statement."""
        self._of(source).after.setdefault(self._lines(statement, source), []).extend(_parsed(lines))

    def wrap(self, statements: Sequence[ast.stmt], scope: Scope, header: str, name: str = "") -> None:
        """Put statements of one block under a `with` line.

        Args:
            statements: The statements.
            scope: Their scope.
            header: The `with` line.
            name: If the last statement calls a method of an expression, as in `f(x).backward()`: the block assigns the
                expression to this name, and the method call follows the block. Empty for all other statements.
        """
        source, edits = scope.source, self._of(scope.source)
        nodes = [self._lines(statement, source) for statement in statements]
        later: list[cst.BaseStatement] = []
        if name:
            match nodes[-1]:
                case cst.SimpleStatementLine(body=[cst.Expr(value=cst.Call(func=cst.Attribute() as func) as call)]):
                    call = call.with_changes(func=func.with_changes(value=cst.Name(name), dot=cst.Dot()))
                    later = [cst.SimpleStatementLine([cst.Expr(call)])]
                case _:
                    raise UnwritableError(f"{source.line_of(statements[-1])} is not a method call")
            self._change(source, nodes[-1], lambda line: _assigning(line, name))
        edits.withs[nodes[0]] = nodes[-1], cst.ensure_type(cst.parse_statement(f"{header}\n    pass\n"), cst.With), later
        for string, text in self._of(source).file.long_strings(
            statements[0]
        ):  # `{x = }` prints its own white space, so it must not be indented
            self._change(source, string, replacer(string.with_changes(parts=[cst.FormattedStringText(text)])))

    # Names and imports.

    def spell(self, dotted: str, scope: Scope, *, top: bool = False) -> str:
        """Return how to write a full name such as `torch.autocast` in a scope, or at the top of its file.

        Adds an import if necessary.

        Raises:
            UnwritableError: The name to import means something else in the file.
        """
        apart = dotted.startswith(_IMPORTED_APART)
        for short, full in visible_names(self.project, scope, top=top):
            if full and (full == dotted or (dotted.startswith(f"{full}.") and not apart)):
                return f"{short}{dotted.removeprefix(full)}"
        module, _, name = dotted.rpartition(".") if apart else ("", "", dotted.partition(".")[0])
        self._free(name, dotted if apart else name, scope)
        self.import_line(scope.source, *((module, name) if apart else (name,)))
        return name if apart else dotted

    def _free(self, name: str, dotted: str, scope: Scope) -> None:
        if scope.lookup(name) is not None and self.project.dotted(ast.Name(name), scope) != dotted:
            raise UnwritableError(f"`{name}` means something else in {scope.source.path.name}")

    def import_line(self, source: Source, module: str, name: str = "") -> None:
        """Add an import after the last one at the top of a file."""
        names = self._of(source).imports.setdefault(module, [])
        if name and name not in names:
            names.append(name)

    def setting(self, source: Source, *lines: str) -> None:
        """Add lines below the imports of a file, next to other torch settings."""
        anchor, _ = last_import(self.project, source)
        block = source.tree.body
        at = block.index(anchor) + 1 if anchor is not None else 0
        settings = []
        while at < len(block) and is_setting(self.project, block[at], source):
            settings.append(block[at])
            at += 1
        if settings:
            self.after(settings[-1], source, *lines)
            return
        edits, statements = self._of(source), _parsed(lines)
        if anchor is not None or edits.imports:
            statements[0] = _with_gap(statements[0])
        edits.after.setdefault(None if anchor is None else self._of(source).file.lines(anchor), []).extend(statements)
        if at < len(block):
            edits.gap_before.add(self._of(source).file.lines(block[at]))


class _Writer(cst.CSTTransformer):
    """Applies the edits of one file."""

    def __init__(self, edits: _FileEdits) -> None:
        super().__init__()
        self._edits, self._unchanged = edits, set[cst.CSTNode](edits.file.module.body) - edits.tops

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Skip top-level statements without changes."""
        return node not in self._unchanged

    def on_leave(self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT) -> Any:
        """Change a node, and add new lines to a block."""
        updated: Any = super().on_leave(original_node, updated_node)
        for change in self._edits.changes.get(original_node, ()):
            updated = change(updated)
        if isinstance(original_node, cst.IndentedBlock | cst.Module):
            updated = updated.with_changes(body=self._body(original_node, updated.body))
        return updated

    def _body(self, original: cst.IndentedBlock | cst.Module, statements: Statements) -> list[Any]:
        edits = self._edits
        body: list[Any] = [*edits.after.get(None, ())] if isinstance(original, cst.Module) else []
        opened, last = len(body), None
        for old, statement in zip(original.body, statements, strict=True):
            new: Any = statement
            if old in edits.gap_before and not (new.leading_lines and new.leading_lines[0].comment is None):
                new = _with_gap(new)
            if old in edits.before:
                first, *more = edits.before[old]
                body += [first.with_changes(leading_lines=new.leading_lines), *more]
                new = new.with_changes(leading_lines=[])
            if old in edits.withs:
                opened, last = len(body), edits.withs[old][0]
                header, later = edits.withs[old][1:]
                header = header.with_changes(leading_lines=new.leading_lines)
                new = new.with_changes(leading_lines=[])
            body.append(new)
            if old is last:
                indent = original.indent if isinstance(original, cst.IndentedBlock) else None
                inner = cst.IndentedBlock(body[opened:], indent=indent)
                body[opened:] = [header.with_changes(body=inner), *later]
            body += edits.after.get(old, ())
        return body


def _parsed(lines: Sequence[str]) -> list[Any]:
    module = cst.parse_module("\n".join([*lines, ""]))
    first, *more = module.body
    return [first.with_changes(leading_lines=[*module.header, *first.leading_lines]), *more]


def _assigning(line: cst.SimpleStatementLine, name: str) -> cst.SimpleStatementLine:
    """Turn `value.method()` into `name = value`."""
    call = cst.ensure_type(cst.ensure_type(line.body[0], cst.Expr).value, cst.Call)
    value = cst.ensure_type(call.func, cst.Attribute).value
    return line.with_changes(body=[cst.Assign([cst.AssignTarget(cst.Name(name))], value)])


def _with_gap(statement: Any) -> Any:
    return statement.with_changes(leading_lines=[_EMPTY_LINE, *statement.leading_lines])
