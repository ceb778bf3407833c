"""One file of the user's: its text, its tree and its tokens, and where in the text each stands.

Edits are changes of the text by position, so that comments and formatting stay the user's own. Trees come from `ast` and
are never written back. (libcst would write trees back as they were; what is changed here are arguments, whole lines and
indentation, which positions say just as well without another package.)
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hasten.core.source_edits import UnwritableError

DEFAULT_INDENT = "    "
_BLOCKS = ("body", "orelse", "finalbody")
_NO_CODE = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})


@dataclass(frozen=True)
class Edit:
    """Put `new` in the place of the characters from `start` up to `end`; an insertion where both are one."""

    start: int
    end: int
    new: str


@dataclass(frozen=True)
class Token:
    """A token that is code (no comment, no line end), by its place in the text."""

    string: str
    start: int
    end: int


def parse(text: str) -> ast.Module:
    """The tree of a module, checked as far as the compiler checks it. Raises SyntaxError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the compiler thinks of the user's strings is not ours to tell
        tree = ast.parse(text)
        compile(text, "<patched>", "exec", dont_inherit=True)
    return tree


class Source:
    """A file's text with its tree. Raises SyntaxError where it is no Python.

    Attributes:
        path: The file.
        text: What stands in it, without a byte order mark.
        lines: For each line its number in the file as it was before any change; empty where nothing was changed.
        tree: Its tree.
        newline: How its lines end.
    """

    def __init__(self, path: Path, text: str, lines: Sequence[int] = ()) -> None:
        self.path, self.text, self.lines = path, text, lines
        self.tree = parse(text)
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]

    @cached_property
    def parent(self) -> dict[ast.AST, ast.AST]:
        """Node -> the node that holds it."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def tokens(self) -> list[Token]:
        """The tokens that are code, in order."""
        code = (item for item in self._raw_tokens if item.type not in _NO_CODE and item.string)
        return [Token(item.string, *self._span(item)) for item in code]

    @cached_property
    def _raw_tokens(self) -> list[tokenize.TokenInfo]:
        return list(tokenize.generate_tokens(io.StringIO(self.text, newline="").readline))

    def _span(self, token: tokenize.TokenInfo) -> tuple[int, int]:
        (row, column), (last_row, last_column) = token.start, token.end
        return self._lines[row - 1] + column, self._lines[last_row - 1] + last_column

    # Places.

    def start(self, node: ast.expr | ast.stmt) -> int:
        """Where a node begins."""
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        """Where a node ends."""
        return self.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def offset(self, line: int, column_bytes: int) -> int:
        """Where a line and column of `ast` stand; it counts columns in bytes of UTF-8."""
        begin = self._lines[line - 1]
        stop = self._lines[line] if line < len(self._lines) else len(self.text)
        return begin + len(self.text[begin:stop].encode()[:column_bytes].decode())

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        return self.text[self.start(node) : self.end(node)]

    def line_start(self, offset: int) -> int:
        """Where the line of an offset begins."""
        return self.text.rfind("\n", 0, offset) + 1

    def line_end(self, offset: int) -> int:
        """Where the line of an offset ends, before its line end."""
        stop = self.text.find("\n", offset)
        stop = len(self.text) if stop < 0 else stop
        return stop - 1 if stop > offset and self.text[stop - 1] == "\r" else stop

    def next_line(self, offset: int) -> int:
        """Where the line after that of an offset begins; the end of the text where there is none."""
        stop = self.text.find("\n", offset)
        return len(self.text) if stop < 0 else stop + 1

    def between(self, start: int, end: int) -> list[Token]:
        """The tokens of code within a stretch of the text."""
        return [token for token in self.tokens if start <= token.start and token.end <= end]

    def line_of(self, node: ast.expr | ast.stmt) -> str:
        """`train.py:12`, for messages: as the file is on disk."""
        return f"{self.path.name}:{self.lines[node.lineno - 1] if self.lines else node.lineno}"

    # Statements.

    def up(self, node: ast.AST) -> Iterator[ast.AST]:
        """The node, and what holds it, up to the module."""
        at: ast.AST | None = node
        while at is not None:
            yield at
            at = self.parent.get(at)

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

    def first_line(self, statement: ast.stmt) -> int:
        """Where the first line of a statement begins, decorators included."""
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        return self.line_start(min([self.start(statement), *(self.start(item) for item in decorators)]))

    def indent(self, statement: ast.stmt) -> str:
        """The white space before a statement. Raises UnwritableError where something else stands there."""
        begin = self.line_start(self.start(statement))
        space = self.text[begin : self.start(statement)]
        if space.strip():
            raise UnwritableError(f"{self.line_of(statement)} holds several statements in one line")
        return space

    def whole_lines(self, statement: ast.stmt) -> None:
        """Raise UnwritableError unless the lines of a statement hold nothing else but comments."""
        self.indent(statement)
        end = self.end(statement)
        rest = self.text[end : self.line_end(end)].strip()
        if rest and not rest.startswith("#"):
            raise UnwritableError(f"{self.line_of(statement)} holds several statements in one line")

    def indent_unit(self, statement: ast.stmt) -> str:
        """One step of indentation, as it is around a statement."""
        own = self.indent(statement)
        holder = self.parent.get(statement)
        if isinstance(holder, ast.stmt):
            outer = self.text[self.line_start(self.start(holder)) : self.start(holder)]
            if not outer.strip() and own.startswith(outer) and own != outer:
                return own[len(outer) :]
        found = re.search(r"^([ \t]+)\S", self.text, re.MULTILINE)
        return "\t" if found and found[1].startswith("\t") else DEFAULT_INDENT

    def line_starts(self, start: int, end: int) -> list[int]:
        """The beginnings of the lines in a stretch that may be indented: not blank, and not inside of a string."""
        strings = self._string_spans()
        found, at = [], self.line_start(start)
        while at < end:
            inside = any(first < at <= last for first, last in strings)
            if not inside and self.text[at : self.line_end(at)].strip():
                found.append(at)
            at = self.next_line(at)
        return found

    def _string_spans(self) -> list[tuple[int, int]]:
        spans, opened = [], []
        for item in self._raw_tokens:
            kind = tokenize.tok_name[item.type]
            if kind == "STRING":
                spans.append(self._span(item))
            elif kind in ("FSTRING_START", "TSTRING_START"):
                opened.append(self._span(item)[0])
            elif kind in ("FSTRING_END", "TSTRING_END"):
                spans.append((opened.pop(), self._span(item)[1]))
        return spans


@dataclass(frozen=True)
class Text:
    """A file's text while it is changed.

    Attributes:
        text: As it is now.
        lines: For each line its number in the file as it was at first.
    """

    text: str
    lines: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> Text:
        """A text that nothing was changed in."""
        return cls(text, tuple(range(1, text.count("\n") + 2)))

    def edited(self, edits: Iterable[Edit]) -> Text:
        """The text with all edits made; several insertions at one place keep their order.

        Raises:
            UnwritableError: Two edits change the same characters.
        """
        pieces: list[tuple[str, int, int]] = []  # what it is, where it comes from, and how far each letter of it moves on
        at = 0
        for edit in sorted(edits, key=lambda item: (item.start, item.end)):
            if edit.start < at:
                raise UnwritableError("two changes meet at the same place")
            pieces += [(self.text[at : edit.start], at, 1), (edit.new, edit.start, 0)]
            at = edit.end
        pieces = [piece for piece in (*pieces, (self.text[at:], at, 1)) if piece[0]]
        letters = [(letter, start + place * step) for text, start, step in pieces for place, letter in enumerate(text)]
        begins = [0, *(place + 1 for place, (letter, _) in enumerate(letters) if letter == "\n")]
        breaks = [place for place, letter in enumerate(self.text) if letter == "\n"]
        old = [letters[place][1] if place < len(letters) else len(self.text) for place in begins]
        numbers = tuple(self.lines[bisect_left(breaks, place)] for place in old)
        return Text("".join(letter for letter, _ in letters), numbers)
