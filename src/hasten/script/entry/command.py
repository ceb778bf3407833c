"""Check the command line of a script, without loading torch."""

from __future__ import annotations

import ast
from pathlib import Path

from hasten.core.errors import TargetError


def check_command(command: tuple[str, ...]) -> None:
    """Raise an error if the command names no script.

    Raises:
        TargetError: The command is empty, or the file does not exist.
    """
    if not command:
        raise TargetError("No script was named. Usage: hasten tune train.py -- ARGUMENTS")
    if command[0] != "-m" and not Path(command[0]).is_file():
        raise TargetError(f"There is no script {command[0]}. Name an existing file, or a module after -m.")
    if command[0] != "-m" and (jobs := jobs_in(Path(command[0]))):
        raise TargetError(
            f"{command[0]} is not a training script. Found jobs: {', '.join(jobs)}. Use {command[0]}:{jobs[0]}."
        )


def jobs_in(path: Path) -> list[str]:
    """Return the names of the jobs that a file defines, found in its source: classes derived from `Job`.

    Empty if the file runs its own training loop (it calls `backward`), or cannot be parsed.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    if any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in ast.walk(tree)):
        return []
    jobs: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if bases & {"Job", *jobs}:
                jobs.append(node.name)
    return jobs
