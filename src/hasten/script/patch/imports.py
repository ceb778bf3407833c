"""Find where the imports of a file end, which names they make visible, and which settings of torch follow them."""

from __future__ import annotations

import ast

from hasten.script.patch.project import Project
from hasten.script.patch.source import LOOPS, Scope, Source


def visible_names(project: Project, scope: Scope, *, top: bool) -> list[tuple[str, str]]:
    """Return pairs (name, full name) of external imports that are visible in a scope, longest full names first.

    With `top`, only imports at the top of the file.
    """
    visible: dict[str, str] = {}
    anchor, _ = last_import(project, scope.source)
    last = 0 if anchor is None else anchor.lineno
    at: Scope | None = scope
    while at is not None:
        for name, binds in at.binds.items():
            imported = all(bind.kind == "import" for bind in binds) and scope.lookup(name) == (at, binds)
            if imported and (not top or _line(binds[0].node) <= last):
                visible.setdefault(name, project.dotted(ast.Name(name), at))
        at = at.parent
    return sorted(visible.items(), key=lambda item: -len(item[1]))


def _line(node: ast.AST) -> int:
    return node.lineno if isinstance(node, ast.stmt) else 0


def last_import(project: Project, source: Source) -> tuple[ast.stmt | None, bool]:
    """Return the last statement of the imports at the top of a file, and whether it is an import itself."""
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
        elif is_setting(project, statement, source):
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
    meaning = project.meaning(node, source.scopes.module)
    return meaning is not None and (meaning.source is not None or meaning.dotted.partition(".")[0] == "torch")


def is_setting(project: Project, statement: ast.stmt, source: Source) -> bool:
    """Return whether a statement configures torch, as `torch.set_num_threads(4)` does."""
    module = source.scopes.module
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        dotted = project.dotted(statement.value.func, module)
        return dotted.startswith(("torch.set_", "torch.backends.")) and dotted != "torch.set_default_device"
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return project.dotted(statement.targets[0], module).startswith("torch.backends.")
    return False
