"""The ways a source is changed: arguments of a call, whole lines, an indented block, an import."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hasten.core.source_edits import UnwritableError
from hasten.script.patch.project import Project
from hasten.script.patch.scopes import LOOPS, Scope
from hasten.script.patch.source import Edit, Source

LONG_LINE = 100
"""Columns from which on new arguments get a line of their own."""
_IMPORTED_APART = ("torch.nn.attention.",)
"""Modules that `import torch` alone does not load."""
SHORT_ARGUMENTS = 20
"""Letters of arguments that are not worth one."""


@dataclass
class Changes:
    """The edits of one technique, by file.

    Attributes:
        project: What is changed.
        edits: File -> its edits.
    """

    project: Project
    edits: dict[Source, list[Edit]]
    _imports: set[tuple[Source, str]]

    def __init__(self, project: Project) -> None:
        self.project, self.edits, self._imports = project, {}, set()

    def add(self, source: Source, *edits: Edit) -> None:
        """Note edits of a file."""
        self.edits.setdefault(source, []).extend(edits)

    # Arguments.

    def set_arguments(self, call: ast.Call, scope: Scope, values: Mapping[str, str], order: Sequence[str] = ()) -> list[str]:
        """Give a call keyword arguments, or other values where it has them.

        Args:
            call: The call.
            scope: Where it stands.
            values: Name -> the text of its value.
            order: The names of the positional arguments.

        Returns:
            What changes, in words; empty where the call has all of it.

        Raises:
            UnwritableError: Positional or keyword arguments are unpacked in a way that hides what is set.
        """
        source = scope.source
        words, missing = [], []
        for name, value in values.items():
            given = _given(call, name, order)
            if given is None:
                missing.append((name, value))
            elif source.segment(given) != value:
                self.add(source, Edit(source.start(given), source.end(given), value))
                words.append(f"{name}={value} (was {source.segment(given)})")
        if missing:
            words += self._append(call, source, missing)
        return words

    def _append(self, call: ast.Call, source: Source, missing: list[tuple[str, str]]) -> list[str]:
        unpacked = [keyword.value for keyword in call.keywords if keyword.arg is None]
        if len(unpacked) > 1:
            raise UnwritableError(f"{source.line_of(call)} takes its arguments from more than one `**`")
        if unpacked and isinstance(unpacked[0], ast.Dict):
            return self._set_items(unpacked[0], source, missing)
        if unpacked:
            inner = unpacked[0]
            simple = isinstance(inner, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
            items = ", ".join(f'"{name}": {value}' for name, value in missing)
            self.add(source, Edit(source.start(inner), source.start(inner), "{**" if simple else "{**("))
            self.add(source, Edit(source.end(inner), source.end(inner), f", {items}}}" if simple else f"), {items}}}"))
        else:
            only = call.args[0] if len(call.args) == 1 and not call.keywords else None
            texts = [f"{name}={value}" for name, value in missing]
            opening = next(token for token in source.between(source.end(call.func), source.end(call)) if token.string == "(")
            if isinstance(only, ast.GeneratorExp) and source.start(only) == opening.start:
                self.add(source, Edit(opening.end, opening.end, "("), Edit(source.end(call) - 1, source.end(call) - 1, ")"))
            last = call.args[-1:] + [keyword.value for keyword in call.keywords]
            anchor = max(last, key=source.start, default=None)
            self.add(source, _appended(source, opening.end, source.end(call) - 1, texts, anchor))
        return [f"{name}={value}" for name, value in missing]

    def _set_items(self, literal: ast.Dict, source: Source, missing: list[tuple[str, str]]) -> list[str]:
        words, new = [], []
        for name, value in missing:
            known = [
                item
                for key, item in zip(literal.keys, literal.values, strict=True)
                if isinstance(key, ast.Constant) and key.value == name
            ]
            if not known:
                new.append((name, value))
            elif source.segment(known[-1]) != value:
                self.add(source, Edit(source.start(known[-1]), source.end(known[-1]), value))
                words.append(f"{name}={value} (was {source.segment(known[-1])})")
        if new:
            texts = [f'"{name}": {value}' for name, value in new]
            anchor = literal.values[-1] if literal.values else None
            self.add(source, _appended(source, source.start(literal) + 1, source.end(literal) - 1, texts, anchor))
        return words + [f"{name}={value}" for name, value in new]

    def remove_argument(self, call: ast.Call, source: Source, value: ast.expr) -> None:
        """Take an argument out of a call, with its name and one comma."""
        keyword = next((item for item in call.keywords if item.value is value), None)
        start = source.start(value) if keyword is None else source.offset(keyword.lineno, keyword.col_offset)
        tokens = source.between(source.end(call.func), source.end(call))
        before = [token for token in tokens if token.end <= start][-1]
        after = next(token for token in tokens if token.start >= source.end(value))
        if after.string == ",":
            following = next(token for token in tokens if token.start >= after.end)
            self.add(source, Edit(start, following.start if following.string != ")" else after.end, ""))
        else:
            self.add(source, Edit(before.start if before.string == "," else start, source.end(value), ""))

    def replace(self, value: ast.expr, source: Source, new: str) -> None:
        """Put a text in the place of an expression."""
        self.add(source, Edit(source.start(value), source.end(value), new))

    # Lines.

    def before(self, statement: ast.stmt, source: Source, *lines: str) -> None:
        """Put lines before a statement, indented as it is."""
        indent, at = source.indent(statement), source.first_line(statement)
        self.add(source, Edit(at, at, "".join(f"{indent}{line}{source.newline}" for line in lines)))

    def after(self, statement: ast.stmt, source: Source, *lines: str) -> None:
        """Put lines after a statement, indented as it is."""
        source.whole_lines(statement)
        indent = source.indent(statement)
        self.add(source, _line_after(source, source.end(statement), [indent + line for line in lines]))

    def wrap(self, statements: Sequence[ast.stmt], scope: Scope, header: str) -> None:
        """Put statements of one block under a `with` line."""
        source = scope.source
        for statement in statements:
            source.whole_lines(statement)
        indent, unit = source.indent(statements[0]), source.indent_unit(statements[0])
        start, end = source.first_line(statements[0]), source.end(statements[-1])
        self.add(source, Edit(start, start, f"{indent}{header}{source.newline}"))
        self.add(source, *(Edit(at, at, unit) for at in source.line_starts(start, end)))

    def wrap_split(self, statements: Sequence[ast.stmt], scope: Scope, header: str, name: str) -> None:
        """The same where the last statement computes something and calls a method of it: the call comes after the block."""
        source, last = scope.source, statements[-1]
        for statement in statements:
            source.whole_lines(statement)
        call = last.value if isinstance(last, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            raise UnwritableError(f"{source.line_of(last)} is no call of a method")
        dot = source.between(source.end(call.func.value), source.end(call.func))[-2]  # and the name after it
        indent, unit = source.indent(last), source.indent_unit(last)
        start = source.first_line(statements[0])
        self.add(source, Edit(start, start, f"{indent}{header}{source.newline}"))
        self.add(source, *(Edit(at, at, unit) for at in source.line_starts(start, dot.start)))
        self.add(source, Edit(source.start(last), source.start(last), f"{name} = "))
        ends = max(token.end for token in source.tokens if token.end <= dot.start)
        self.add(source, Edit(ends, dot.start, f"{source.newline}{indent}{name}"))

    # Names and the top of a file.

    def spell(self, dotted: str, scope: Scope, *, top: bool = False) -> str:
        """How `torch.autocast` is written in a scope, or at the top of its file; imported where it is not there yet.

        Raises:
            UnwritableError: The name that would be imported means something else there.
        """
        apart = dotted.startswith(_IMPORTED_APART)
        for short, full in _visible(self.project, scope, top=top):
            if full and (full == dotted or (dotted.startswith(f"{full}.") and not apart)):
                return f"{short}{dotted.removeprefix(full)}"
        module, _, name = dotted.rpartition(".") if apart else ("", "", dotted.partition(".")[0])
        self._free(name, dotted if apart else name, scope)
        self.import_line(scope.source, f"from {module} import {name}" if apart else f"import {name}")
        return name if apart else dotted

    def _free(self, name: str, dotted: str, scope: Scope) -> None:
        if scope.lookup(name) is not None and self.project.dotted(ast.Name(name), scope) != dotted:
            raise UnwritableError(f"`{name}` means something else in {scope.source.path.name}")

    def import_line(self, source: Source, text: str) -> None:
        """Add an import after the last one at the top of a file."""
        if (source, text) not in self._imports:
            self._imports.add((source, text))
            anchor, imported = _anchor(self.project, source)
            if anchor is None:
                at = source.first_line(source.tree.body[0]) if source.tree.body else 0
                self.add(source, Edit(at, at, f"{text}{source.newline}"))
            else:
                self.add(source, _line_after(source, source.end(anchor), [text] if imported else ["", text]))

    def setting(self, source: Source, *lines: str) -> None:
        """Add lines below the imports of a file, beside others that set up torch."""
        anchor, _ = _anchor(self.project, source)
        block = source.tree.body
        at = block.index(anchor) + 1 if anchor is not None else 0
        settings = []
        while at < len(block) and _is_setting(self.project, block[at], source):
            settings.append(block[at])
            at += 1
        if settings:
            self.after(settings[-1], source, *lines)
            return
        below = [] if at < len(block) and _gap_after(source, anchor) else [""]
        if anchor is None:
            start = source.first_line(block[0]) if block else 0
            above = [""] if any(item is source for item, _ in self._imports) else []
            text = source.newline.join([*above, *lines, *below, ""])
            self.add(source, Edit(start, start, text))
        else:
            self.add(source, _line_after(source, source.end(anchor), ["", *lines, *below]))


def _given(call: ast.Call, name: str, order: Sequence[str]) -> ast.expr | None:
    """The value that a call gives an argument itself; None where it gives none."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if any(isinstance(item, ast.Starred) for item in call.args):
        raise UnwritableError("its positional arguments are unpacked from another value")
    position = list(order).index(name) if name in order else len(call.args)
    return call.args[position] if position < len(call.args) else None


def _appended(source: Source, opened: int, closed: int, texts: list[str], anchor: ast.expr | None) -> Edit:
    """Arguments put behind the last one, as the call is laid out."""
    tokens = source.between(opened, closed)
    if not tokens or anchor is None:
        return Edit(opened, opened, ", ".join(texts))
    last = tokens[-1]
    comma = last.string == ","
    line = source.line_start(source.start(anchor))
    prefix = source.text[line : line + len(source.text[line:]) - len(source.text[line:].lstrip(" \t"))]
    if source.line_start(last.start) != source.line_start(closed):  # the closing bracket has a line of its own
        end = source.line_end(last.end)
        kept = source.text[last.end : end]  # a comment, perhaps
        own_line = "," not in source.text[line : source.start(anchor)]
        lines = prefix + (f",{source.newline}{prefix}" if own_line else ", ").join(texts)
        return Edit(last.end, end, f"{'' if comma else ','}{kept}{source.newline}{lines}{',' if comma else ''}")
    inline = ", ".join(texts)
    column = closed - source.line_start(closed)
    if column + len(inline) > LONG_LINE and len(inline) > SHORT_ARGUMENTS:
        begin = source.line_start(opened)
        if begin != line:  # the last argument has a line of its own already
            deeper = prefix
        elif "\t" in prefix:
            deeper = f"{prefix}    "
        else:
            deeper = " " * (opened - begin)  # under the first argument
        return Edit(last.end, last.end, f"{'' if comma else ','}{source.newline}{deeper}{inline}")
    return Edit(last.end, last.end, f"{' ' if comma else ', '}{inline}")


def _line_after(source: Source, offset: int, lines: list[str]) -> Edit:
    """Lines behind that of an offset; where the file ends there without a line end, it still does."""
    at = source.line_end(offset)
    return Edit(at, at, "".join(f"{source.newline}{line}" for line in lines))


def _gap_after(source: Source, anchor: ast.stmt | None) -> bool:
    if anchor is None:
        return False
    at = source.next_line(source.end(anchor))
    return not source.text[at : source.line_end(at)].strip()


def _visible(project: Project, scope: Scope, *, top: bool) -> list[tuple[str, str]]:
    """(name, full name) of what is imported from outside and seen in a scope, the longest full names first.

    At the top of the file only what is imported there.
    """
    found: dict[str, str] = {}
    anchor, _ = _anchor(project, scope.source)
    last = 0 if anchor is None else anchor.lineno
    at: Scope | None = scope
    while at is not None:
        for name, binds in at.binds.items():
            imported = all(bind.kind == "import" for bind in binds) and scope.lookup(name) == (at, binds)
            if imported and (not top or _line(binds[0].node) <= last):
                found.setdefault(name, project.dotted(ast.Name(name), at))
        at = at.parent
    return sorted(found.items(), key=lambda item: -len(item[1]))


def _line(node: ast.AST) -> int:
    return node.lineno if isinstance(node, ast.stmt) else 0


def _anchor(project: Project, source: Source) -> tuple[ast.stmt | None, bool]:
    """The last statement of the imports at the top of a file, and whether it is an import that may be joined."""
    anchor: ast.stmt | None = None
    joined = False
    for at, statement in enumerate(source.tree.body):
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        docstring = at == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if future or docstring:
            anchor, joined = statement, False
        elif _only_imports(statement):
            anchor, joined = statement, True
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.With, ast.If, ast.Try, *LOOPS)):
            break
        elif _is_setting(project, statement, source):
            continue
        elif any(isinstance(node, ast.Name) and _of_torch(project, node, source) for node in ast.walk(statement)):
            break
    return anchor, joined


def _only_imports(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return True
    if isinstance(statement, ast.Try):
        parts = [*statement.body, *(item for handler in statement.handlers for item in handler.body), *statement.orelse]
        return any(_only_imports(item) for item in parts) and all(
            _only_imports(item) or isinstance(item, ast.Assign | ast.Pass) for item in parts
        )
    if isinstance(statement, ast.If):
        return all(_only_imports(item) for item in (*statement.body, *statement.orelse))
    return False


def _of_torch(project: Project, node: ast.Name, source: Source) -> bool:
    meaning = project.meaning(node, project.scopes(source).module)
    return meaning is not None and (meaning.source is not None or meaning.dotted.partition(".")[0] == "torch")


def _is_setting(project: Project, statement: ast.stmt, source: Source) -> bool:
    """Whether a statement sets up torch or the collector, as `torch.set_num_threads(4)` does."""
    module = project.scopes(source).module
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        dotted = project.dotted(statement.value.func, module)
        return dotted.startswith(("torch.set_", "torch.backends.")) and dotted != "torch.set_default_device"
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return project.dotted(statement.targets[0], module).startswith("torch.backends.")
    return False
