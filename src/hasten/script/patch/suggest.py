"""Write a plan into the user's own source as a patch, and give the reason for everything that cannot be written."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hasten.core.errors import MachineError, PlanError
from hasten.core.optimization import Optimization, required_environment
from hasten.core.plan import Plan
from hasten.core.source_edits import BeforeStartError, NothingToWriteError, UnwritableError
from hasten.script.patch.edits import Changes
from hasten.script.patch.project import Project, follow
from hasten.script.patch.script import script_edits
from hasten.script.patch.source import Source

FAILED = "Hasten failed to read the source"
_TRAINERS = {"lightning": "lightning.Trainer", "transformers": "transformers.TrainingArguments"}
"""Framework named by `Card.left_to` -> the class that takes its settings."""
_BOM = "\ufeff"


@dataclass(frozen=True, kw_only=True)
class Patch:
    """The parts of a plan that can be written into a script.

    Attributes:
        diff: A unified diff with the prefixes a/ and b/, for `patch -p1` and `git apply`; empty if nothing can be written.
            Write it as UTF-8 bytes, because line ends are those of the files.
        folder: The folder to apply it in: the working folder, or one that contains all files if one is outside of it.
        written: Name -> one line about the change.
        left: Name -> why it cannot be written, followed by the lines to write by hand.
    """

    diff: str = ""
    folder: Path = field(default_factory=Path.cwd)
    written: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def suggest(plan: Plan, script: Path) -> Patch:
    """Write a plan into a script and into the files of its project that it imports. Changes nothing on disk.

    Args:
        plan: The optimizations, with their settings.
        script: The file that is run.
    """
    start = script.resolve()
    before, refused = follow(start)
    if start not in before:
        reason = refused.get(start, f"file {script} does not exist")
        return Patch(left=dict.fromkeys(plan.names, reason))
    sources, written, left = before, dict[str, str](), dict[str, str]()
    project = Project(start, sources)
    outside: list[Optimization] = []
    for item in plan.optimizations:
        name = item.card.name
        try:
            changed, written[name] = _written(project, item)
        except BeforeStartError as error:
            outside.append(item)
            left[name] = f"{error.reason}."
        except UnwritableError as error:
            left[name] = "\n    ".join([f"{error.reason}.", *_by_hand(item, error), *_hints(project, item)])
        except RecursionError:
            left[name] = "\n    ".join(["the source is nested too deeply.", *item.by_hand()])
        except Exception as error:  # noqa: BLE001 - a source that is analysed wrongly must not lose the plan itself
            left[name] = f"{FAILED}: {type(error).__name__}: {error}. Please report it."
        else:
            sources = {**sources, **changed}
            project = Project(start, sources)
    for item in outside:
        left[item.card.name] += f"\n    {_command(outside, _shown(start))}"
    folder = _folder(start, [path for path in sources if sources[path] is not before[path]])
    diffs = [_diff(path, before[path].text, sources[path].text, folder) for path in sorted(sources)]
    return Patch(diff="".join(diffs), folder=folder, written=written, left=left)


def _written(project: Project, item: Optimization) -> tuple[dict[Path, Source], str]:
    """Return the files that one optimization changes, and a description. May raise UnwritableError."""
    changes = Changes(project)
    description = item.write_patch(script_edits(changes))
    changed = {}
    for source, text in changes.texts().items():
        try:
            changed[source.path] = Source(source.path, text, source)
        except SyntaxError as error:
            raise UnwritableError(f"{source.path.name} would no longer be valid Python: {error}") from error
    return changed, description


def _command(items: Sequence[Optimization], script: Path) -> str:
    """Return a command that sets all variables of these optimizations, or why there is none."""
    try:
        variables = required_environment(items)
    except (MachineError, PlanError) as error:
        return str(error)
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return f"{given} python {shlex.quote(str(script))}"


def _by_hand(item: Optimization, error: UnwritableError) -> tuple[str, ...]:
    return () if isinstance(error, NothingToWriteError) else error.lines or item.by_hand()


def _hints(project: Project, item: Optimization) -> list[str]:
    """Return the settings for an optimization in the frameworks that the project uses."""
    arguments, settings = item.framework_arguments(), item.card.left_to.items()
    hints = [f"{name.rpartition('.')[2]}(..., {argument})" for name, argument in arguments.items() if project.calls_of(name)]
    return hints + [
        words for framework, words in settings if project.calls_of(name := _TRAINERS[framework]) and name not in arguments
    ]


# The diff.


def _folder(script: Path, changed: list[Path]) -> Path:
    """Return the working folder if it contains all files, otherwise the innermost folder that does."""
    here = Path.cwd().resolve()
    if all(path.is_relative_to(here) for path in changed):
        return here
    folder = script.parent
    while not all(path.is_relative_to(folder) for path in changed):
        folder = folder.parent
    return folder


def _shown(script: Path) -> Path:
    here = Path.cwd().resolve()
    return script.relative_to(here) if script.is_relative_to(here) else script


def _diff(path: Path, before: str, after: str, folder: Path) -> str:
    if before == after:
        return ""
    mark = _BOM if path.read_bytes().startswith(_BOM.encode()) else ""
    name = path.relative_to(folder).as_posix()
    end = "\t\n" if any(letter.isspace() for letter in name) else "\n"  # a tab ends a name that contains spaces
    old, new = (_lines(mark + text) for text in (before, after))
    hunks = difflib.unified_diff(old, new, n=3)
    header = [f"--- a/{name}{end}", f"+++ b/{name}{end}"]
    return "".join([*header, *_ended(line for at, line in enumerate(hunks) if at > 1)])


def _lines(text: str) -> list[str]:
    """Split a text into lines as patch tools do: only a line feed ends a line."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _ended(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
