"""Map `ast` nodes of a file to its libcst tree, which preserves comments and formatting."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import cast

import libcst as cst
from libcst.metadata import CodePosition, CodeRange, MetadataWrapper, PositionProvider

from hasten.core.source_edits import UnwritableError
from hasten.script.patch.source import Source


class Formatted:
    """The libcst tree of a file, parsed on first use.

    Attributes:
        source: The file.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._places: dict[cst.CSTNode, dict[cst.CSTNode, CodeRange]] = {}

    @cached_property
    def module(self) -> cst.Module:
        """The libcst tree. Raises UnwritableError if libcst cannot parse the file."""
        try:
            module = cst.parse_module(self.source.text)
        except cst.ParserSyntaxError as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise UnwritableError(f"libcst cannot parse {self.source.path.name}: {reason}") from error
        if self.source.is_on_disk and module.code != self.source.text:
            raise UnwritableError(f"libcst would change the formatting of {self.source.path.name}")
        return module

    @cached_property
    def _tops(self) -> dict[ast.AST, cst.BaseStatement]:
        """Top-level statement -> its libcst node. Both trees have the statements in the same order."""
        lines = [(line, len(line.body) if isinstance(line, cst.SimpleStatementLine) else 1) for line in self.module.body]
        tops = [cast("cst.BaseStatement", line) for line, count in lines for _ in range(count)]
        return dict(zip(self.source.tree.body, tops, strict=True))

    def top(self, node: ast.AST) -> cst.BaseStatement:
        """Return the libcst node of the top-level statement that contains a node."""
        return next(self._tops[item] for item in self.source.up(node) if item in self._tops)

    def places(self, top: cst.CSTNode) -> dict[cst.CSTNode, CodeRange]:
        """Return the positions of all libcst nodes in a top-level statement."""
        if top not in self._places:
            module = self.module.with_changes(header=[], footer=[], body=[top])
            positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
            self._places[top] = dict(positions)
        return self._places[top]

    def expression(self, node: ast.expr) -> cst.BaseExpression:
        """Return the libcst node of an expression. Raises UnwritableError if there is none."""
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
        shift, places = self._shifted(node)
        wanted = CodeRange(
            (node.lineno - shift, self.source.column(node.lineno, node.col_offset)),
            (end_line - shift, self.source.column(end_line, end)),
        )
        for candidate, place in places.items():
            if isinstance(candidate, cst.BaseExpression) and place == wanted:
                return candidate
        raise UnwritableError(f"{self.source.line_of(node)} is written in an unsupported form")

    def lines(self, statement: ast.stmt) -> cst.BaseStatement:
        """Return the libcst node of a statement. Raises UnwritableError if it shares its line with others."""
        shift, places = self._shifted(statement)
        start = CodePosition(statement.lineno - shift, self.source.column(statement.lineno, statement.col_offset))
        for candidate, place in places.items():
            if place.start == start and isinstance(candidate, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                if isinstance(candidate, cst.SimpleStatementLine) and len(candidate.body) > 1:
                    break
                return candidate
        raise UnwritableError(f"{self.source.line_of(statement)} contains several statements in one line")

    def long_strings(self, statement: ast.stmt) -> Iterator[tuple[cst.FormattedString, str]]:
        """Yield the multi-line f-strings of the top-level statement around a statement, with the text in their quotes."""
        shift, places = self._shifted(statement)
        for candidate, place in places.items():
            if isinstance(candidate, cst.FormattedString) and place.start.line != place.end.line:
                rows = self.source.rows[place.start.line + shift - 1 : place.end.line + shift]
                text = "\n".join([*rows[:-1], rows[-1][: place.end.column]])[place.start.column :]
                yield candidate, text.removeprefix(candidate.start).removesuffix(candidate.end)

    def _shifted(self, node: ast.AST) -> tuple[int, dict[cst.CSTNode, CodeRange]]:
        """Return the number of lines above a node's top-level statement, and the positions of the nodes in it."""
        top = self.top(node)
        places = self.places(top)
        first = next(item for item in self.source.tree.body if self._tops[item] is top)
        return first.lineno - places[top].start.line, places

    def code(self, node: cst.CSTNode) -> str:
        """Return the text of a libcst node."""
        return self.module.code_for_node(node)
