"""Change the arguments of a call in a libcst tree, in the layout of those that it has."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from hasten.core.source_edits import UnwritableError
from hasten.script.patch.source import Source

LONG_LINE = 100
"""Column from which new arguments are put on a new line."""
SHORT_ARGUMENTS = 20
"""Number of characters up to which new arguments stay on the line in any case."""
_SPACE = cst.SimpleWhitespace(" ")

Change = Callable[[Any], cst.CSTNode]
"""Takes a node whose inner nodes have been changed already, and returns the changed node."""


def index_of(call: cst.Call, name: str, order: Sequence[str]) -> int | None:
    """Return the position of an argument in a call; None if the call does not pass it."""
    for place, arg in enumerate(call.args):
        if arg.keyword is not None and arg.keyword.value == name:
            return place
    if any(arg.star == "*" for arg in call.args):
        raise UnwritableError("its positional arguments are unpacked from another value")
    position = list(order).index(name) if name in order else len(call.args)
    positional = [place for place, arg in enumerate(call.args) if arg.keyword is None and not arg.star]
    return positional[position] if position < len(positional) else None


def replacer(new: cst.CSTNode) -> Change:
    """Return a change that puts another node in the place of a node."""
    return lambda _: new


def setter(at: int, value: str) -> Change:
    """Return a change of a call that gives a new value to the argument at this position."""

    def change(call: cst.Call) -> cst.Call:
        args = list(call.args)
        args[at] = args[at].with_changes(value=cst.parse_expression(value))
        return call.with_changes(args=args)

    return change


def without(call: cst.Call, at: int) -> cst.Call:
    """Return a call without the argument at this position."""
    args = list(call.args)
    removed = args.pop(at)
    if args and at == len(args):
        args[-1] = args[-1].with_changes(comma=removed.comma, whitespace_after_arg=removed.whitespace_after_arg)
    return call.with_changes(args=args)


def items_named(literal: cst.Dict, name: str) -> list[cst.DictElement]:
    """Return the items of a dict literal whose key is this string."""
    items = [item for item in literal.elements if isinstance(item, cst.DictElement)]
    return [item for item in items if isinstance(item.key, cst.SimpleString) and item.key.evaluated_value == name]


def with_items(literal: cst.Dict, missing: Mapping[str, str]) -> cst.Dict:
    """Return a dict literal with additional items at the end."""
    elements = list(literal.elements)
    if elements:
        elements[-1] = elements[-1].with_changes(comma=cst.Comma(whitespace_after=_SPACE))
    elements += [
        cst.DictElement(cst.SimpleString(f'"{name}"'), cst.parse_expression(value)) for name, value in missing.items()
    ]
    return literal.with_changes(elements=elements)


def merged(value: cst.BaseExpression, missing: Mapping[str, str]) -> cst.Dict:
    """Return `{**value, "name": ...}`."""
    simple = isinstance(value, cst.Name | cst.Attribute | cst.Call | cst.Subscript) or value.lpar
    inner = value if simple else value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return with_items(cst.Dict([cst.StarredDictElement(inner)], lpar=value.lpar, rpar=value.rpar), missing)


@dataclass(frozen=True)
class _Layout:
    """White space between arguments: before the first new one, and before each further new one."""

    before: cst.BaseParenthesizableWhitespace = _SPACE
    between: cst.BaseParenthesizableWhitespace = _SPACE


def layout_of(source: Source, call: ast.Call, node: cst.Call, length: int) -> _Layout:
    """Return the layout of new arguments of a given length: like the existing arguments, or on a new line."""
    if not node.args:
        return _Layout()
    commas = [arg.comma.whitespace_after for arg in node.args[:-1] if isinstance(arg.comma, cst.Comma)]
    spaces = [node.whitespace_before_args, *commas]
    breaks = [space for space in spaces if isinstance(space, cst.ParenthesizedWhitespace)]
    new_line = _new_line(breaks[-1].last_line.value, indent=breaks[-1].indent) if breaks else None
    if isinstance(_closing(node.args[-1]), cst.ParenthesizedWhitespace):  # the closing bracket is on its own line
        before = new_line or _new_line("")
        return _Layout(before, before if new_line and spaces[-1] is breaks[-1] else _SPACE)
    end_line = call.end_lineno or call.lineno
    column = source.column(end_line, call.end_col_offset or 0) - 1
    if column + length <= LONG_LINE or length <= SHORT_ARGUMENTS:
        return _Layout()
    arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    first = min(arguments, key=lambda item: (item.lineno, item.col_offset))
    indent = source.indent(first.lineno)
    under_first = f"{indent}    " if "\t" in indent else " " * source.column(first.lineno, first.col_offset)
    return _Layout(new_line or _new_line(under_first, indent=False))


def _closing(arg: cst.Arg) -> cst.BaseParenthesizableWhitespace:
    """Return the white space between the last argument and the closing bracket."""
    return arg.comma.whitespace_after if isinstance(arg.comma, cst.Comma) else arg.whitespace_after_arg


def _new_line(text: str, *, indent: bool = True) -> cst.ParenthesizedWhitespace:
    return cst.ParenthesizedWhitespace(indent=indent, last_line=cst.SimpleWhitespace(text))


def appended(call: cst.Call, missing: Mapping[str, str], layout: _Layout) -> cst.Call:
    """Return a call with arguments added at the end, in the call's layout."""
    args, space = list(call.args), layout.before
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = [
        cst.Arg(cst.parse_expression(value), cst.Name(name), equal, comma=cst.Comma(whitespace_after=layout.between))
        for name, value in missing.items()
    ]
    new[-1] = new[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    if args:
        last, closing = args[-1], _closing(args[-1])
        if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar:
            value = last.value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            last = last.with_changes(value=value)
        if isinstance(closing, cst.ParenthesizedWhitespace) and isinstance(space, cst.ParenthesizedWhitespace):
            ending = closing.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
            if isinstance(last.comma, cst.Comma):
                new[-1] = new[-1].with_changes(comma=cst.Comma(whitespace_after=ending))
            else:
                new[-1] = new[-1].with_changes(whitespace_after_arg=ending)
            space = closing.with_changes(indent=space.indent, last_line=space.last_line)  # keeps its comment
        args[-1] = last.with_changes(comma=cst.Comma(whitespace_after=space), whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*args, *new])
