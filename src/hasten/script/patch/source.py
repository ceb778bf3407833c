"""One file of the user's: its syntax tree for reading, and its libcst tree for writing.

Scripts are read (what a name means, which call makes the loader) on the tree of `ast`, which takes a thirtieth of the time
that libcst takes with its metadata. libcst, which keeps comments and formatting, parses only the files that are changed. A
place found in the one tree is looked up in the other by its position.
"""

from __future__ import annotations

import ast
import difflib
import warnings
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import cast

import libcst as cst
from libcst.metadata import CodePosition, CodeRange, MetadataWrapper, PositionProvider

from hasten.core.source_edits import UnwritableError
from hasten.script.patch.scopes import read_scopes

_BLOCKS = ("body", "orelse", "finalbody")


def parse(text: str) -> ast.Module:
    """The tree of a module, checked as far as the compiler checks it. Raises SyntaxError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the compiler thinks of the user's strings is not ours to tell
        tree = ast.parse(text)
        compile(text, "<patched>", "exec", dont_inherit=True)
    return tree


class Source:
    """A file's text with its trees. Raises SyntaxError where it is no Python, RecursionError where it is nested too deeply.

    Args:
        path: The file.
        text: Its text now, without a byte order mark.
        before: The file before its last change; None for the file on disk, which line numbers in messages are of.

    Attributes:
        path: As given.
        text: As given.
        tree: The tree of `ast`.
        scopes: Which names are bound where.
    """

    def __init__(self, path: Path, text: str, before: Source | None = None) -> None:
        self.path, self.text, self._before = path, text, before
        self.tree = parse(text)
        self.scopes = read_scopes(self)
        self._places: dict[cst.CSTNode, dict[cst.CSTNode, CodeRange]] = {}

    # Messages.

    def line_of(self, node: ast.expr | ast.stmt) -> str:
        """`train.py:12`, for messages: as the file is on disk."""
        return f"{self.path.name}:{self.disk_lines[min(node.lineno, len(self.disk_lines)) - 1]}"

    @cached_property
    def disk_lines(self) -> list[int]:
        """For each line, the number of its line on disk, whatever its indentation; for a new one, of a line beside it."""
        if self._before is None:
            return list(range(1, len(self.rows) + 1))
        before, now = ([line.strip() for line in source.rows] for source in (self._before, self))
        old, numbers = self._before.disk_lines, list[int]()
        for kind, first, end, start, stop in difflib.SequenceMatcher(None, before, now, autojunk=False).get_opcodes():
            if kind == "insert":  # what opens a block belongs to the line after it
                numbers += [old[max(first - (not now[line].endswith(":")), 0)] for line in range(start, stop)]
            else:
                numbers += [old[min(first + line - start, end - 1)] for line in range(start, stop)]
        return numbers

    def segment(self, node: ast.expr) -> str:
        """The text of an expression."""
        return ast.get_source_segment(self.text, node) or ast.unparse(node)

    # The tree of ast.

    @cached_property
    def parent(self) -> dict[ast.AST, ast.AST]:
        """Node -> the node that holds it."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def up(self, node: ast.AST) -> Iterator[ast.AST]:
        """The node, and what holds it, up to the module."""
        holder: ast.AST | None = node
        while holder is not None:
            yield holder
            holder = self.parent.get(holder)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds a node."""
        return next(item for item in self.up(node) if isinstance(item, ast.stmt))

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements among which one stands."""
        holder = self.parent[statement]
        for name in _BLOCKS:
            block = getattr(holder, name, None)
            if isinstance(block, list) and statement in block:
                return block
        raise UnwritableError(f"{self.line_of(statement)} stands where no line can be added")

    # The tree of libcst.

    @cached_property
    def module(self) -> cst.Module:
        """The tree of libcst. Raises UnwritableError where libcst cannot parse the file."""
        try:
            module = cst.parse_module(self.text)
        except cst.ParserSyntaxError as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise UnwritableError(f"libcst cannot parse {self.path.name}: {reason}") from error
        if self._before is None and module.code != self.text:
            raise UnwritableError(f"libcst would change the formatting of {self.path.name}")
        return module

    @cached_property
    def _tops(self) -> dict[ast.AST, cst.BaseStatement]:
        """Statement of the module -> its lines; both trees have them in the same order."""
        lines = [(line, len(line.body) if isinstance(line, cst.SimpleStatementLine) else 1) for line in self.module.body]
        tops = [cast("cst.BaseStatement", line) for line, count in lines for _ in range(count)]
        return dict(zip(self.tree.body, tops, strict=True))

    def top(self, node: ast.AST) -> cst.BaseStatement:
        """The lines of the statement of the module that holds a node."""
        return next(self._tops[item] for item in self.up(node) if item in self._tops)

    def places(self, top: cst.CSTNode) -> dict[cst.CSTNode, CodeRange]:
        """Where the nodes of libcst are that a statement of the module holds."""
        if top not in self._places:
            module = self.module.with_changes(header=[], footer=[], body=[top])
            found = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
            self._places[top] = dict(found)
        return self._places[top]

    def expression(self, node: ast.expr) -> cst.BaseExpression:
        """The node of libcst of an expression. Raises UnwritableError where there is none."""
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
        shift, places = self._shifted(node)
        wanted = CodeRange(
            (node.lineno - shift, self.column(node.lineno, node.col_offset)), (end_line - shift, self.column(end_line, end))
        )
        for found, place in places.items():
            if isinstance(found, cst.BaseExpression) and place == wanted:
                return found
        raise UnwritableError(f"{self.line_of(node)} is written in a way that is not known here")

    def lines(self, statement: ast.stmt) -> cst.BaseStatement:
        """The node of libcst of a statement. Raises UnwritableError where it shares its line with others."""
        shift, places = self._shifted(statement)
        start = CodePosition(statement.lineno - shift, self.column(statement.lineno, statement.col_offset))
        for found, place in places.items():
            if place.start == start and isinstance(found, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                if isinstance(found, cst.SimpleStatementLine) and len(found.body) > 1:
                    break
                return found
        raise UnwritableError(f"{self.line_of(statement)} holds several statements in one line")

    def long_strings(self, statement: ast.stmt) -> Iterator[tuple[cst.FormattedString, str]]:
        """The f-strings over several lines in the statement of the module around one, with what is between their quotes."""
        shift, places = self._shifted(statement)
        for found, place in places.items():
            if isinstance(found, cst.FormattedString) and place.start.line != place.end.line:
                rows = self.rows[place.start.line + shift - 1 : place.end.line + shift]
                text = "\n".join([*rows[:-1], rows[-1][: place.end.column]])[place.start.column :]
                yield found, text.removeprefix(found.start).removesuffix(found.end)

    def _shifted(self, node: ast.AST) -> tuple[int, dict[cst.CSTNode, CodeRange]]:
        """The places of the nodes around one, and how many lines of the file are above them."""
        top = self.top(node)
        places = self.places(top)
        first = next(item for item in self.tree.body if self._tops[item] is top)
        return first.lineno - places[top].start.line, places

    def column(self, line: int, column_bytes: int) -> int:
        """A column of `ast`, which counts bytes of UTF-8, in characters."""
        return len(self.rows[line - 1].encode()[:column_bytes].decode())

    def indent(self, line: int) -> str:
        """The white space that a line begins with."""
        text = self.rows[line - 1]
        return text[: len(text) - len(text.lstrip())]

    @cached_property
    def rows(self) -> list[str]:
        """The lines of the text."""
        return self.text.split("\n")

    def code(self, node: cst.CSTNode) -> str:
        """The text of a node of libcst."""
        return self.module.code_for_node(node)
