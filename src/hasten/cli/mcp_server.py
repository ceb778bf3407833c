"""The tools of `hasten mcp`: each runs one command of Hasten, within one folder, and returns what it measured.

What an agent asks for becomes the words of a command, never a line for a shell. The command is announced as a progress
message and on standard error before it runs. Measurements run one at a time, because two at once would disturb each other.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio
from anyio.abc import ByteReceiveStream, Process
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from hasten.core.errors import HastenError
from hasten.core.version import __version__

INSTRUCTIONS = (
    "Hasten makes PyTorch training faster and proves it with paired, interleaved runs. Profile first; tune writes a plan; "
    "evidence reads what a tuning proved; check says whether a change of the code made training slower. Trust verdicts, not "
    "single times: 'undecided' means that the difference is within the noise. Tools run real training and take minutes."
)
TAIL_LINES = 12
"""Lines of a command's output that are returned with an error."""
GRACE_S = 20.0
"""Seconds that a cancelled command has to remove its temporary files."""
BULKY = ("machine", "measured", "samples", "sessions")
"""Keys that are left out of answers: their content is in the files."""

Target = Annotated[str, Field(description="package.module:Job, path/file.py:Job, or a training script such as train.py")]
Arguments = Annotated[tuple[str, ...], Field(description="Arguments of a script")]
PlanOnly = Annotated[bool, Field(description="Return the command without running it")]
Budget = Annotated[str, Field(description="Time to spend: 90s, 5m, 1h")]
Out = Annotated[str, Field(description="Folder of the tuning, relative to the server's folder")]


class Answer(BaseModel):
    """The answer of a tool.

    Attributes:
        command: The command, as on a command line in the server's folder.
        ran: Whether it ran.
        status: Its exit status. Of check: 0 faster or same, 1 slower, 2 undecided.
        result: What it measured.
    """

    command: str
    ran: bool
    status: int | None = None
    result: dict[str, Any] | None = None


class Tools:
    """Runs the commands."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._turn = anyio.Lock()

    def within(self, word: str) -> str:
        """Return a word of a command, if the paths in it are in the folder; symbolic links are followed.

        Raises:
            ToolError: A path is outside of the folder.
        """
        for part in (word, word.partition("=")[2]):
            path = self.root / part
            is_path = os.sep in part or part.startswith("~") or part == ".." or os.path.lexists(path)
            if "\0" in part or (is_path and (part.startswith("~") or not path.resolve().is_relative_to(self.root))):
                raise ToolError(f"{part!r} is outside of {self.root}, the only folder that this server may use.")
        return word

    def target(self, target: str, arguments: Sequence[str] = ()) -> list[str]:
        """Return a target and its arguments as the last words of a command.

        Raises:
            ToolError: A path is outside of the folder.
        """
        where = target.rpartition(":")[0] or target
        self.within(where)
        names = where.split(".")
        for depth, suffix in itertools.product(range(1, len(names) + 1), ("", ".py")):  # a package may be a link too
            self.within("/".join(names[:depth]) + suffix)
        return ["--", target, *map(self.within, arguments)]

    async def run(
        self, options: Sequence[str], tail: Sequence[str], context: Context, *, plan_only: bool, fine: Sequence[int] = (0,),
        json_option: bool = True,
    ) -> Answer:  # fmt: skip
        """Show a command, and run it unless only its plan is asked for.

        Exit statuses in `fine` are a result.

        Raises:
            ToolError: It failed. The message has the command and its last output.
        """
        shown = shlex.join(["hasten", *options, *tail])
        if plan_only:
            return Answer(command=shown, ran=False)
        async with self._turn:
            print(f"hasten mcp: running in {self.root}: {shown}", file=sys.stderr, flush=True)  # noqa: T201 - the server's log
            await context.report_progress(0, message=f"running in {self.root}: {shown}")
            with tempfile.TemporaryDirectory(prefix="hasten-mcp-") as folder:
                file = Path(folder) / "result.json"
                destination = ["--json", str(file)] if json_option else []
                command = [sys.executable, "-m", "hasten", *options, *destination, *tail]
                status, lines = await self._process(command, context)
                if status not in fine:
                    raise ToolError(f"`{shown}` exited with {status}: {' | '.join(lines[-TAIL_LINES:])}")
                result = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        return Answer(command=shown, ran=True, status=status, result=without_bulk(result))

    async def _process(self, command: Sequence[str], context: Context) -> tuple[int, list[str]]:
        """Run a command, and report each line that it prints as progress."""
        process = await anyio.open_process(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, cwd=self.root, start_new_session=True
        )
        lines: list[str] = []
        rest = ""
        output = process.stdout
        try:
            while output is not None and (chunk := await _next_chunk(output)):
                *whole, rest = (rest + chunk.decode("utf-8", errors="replace")).split("\n")
                for line in filter(None, map(str.strip, whole)):
                    lines.append(line)
                    await context.report_progress(len(lines), message=line)
            return await process.wait(), [*lines, *filter(None, [rest.strip()])]
        except BaseException:
            with anyio.CancelScope(shield=True):
                await _end(process)
            raise


async def _next_chunk(output: ByteReceiveStream) -> bytes:
    """Return the next output of a command; empty at its end."""
    try:
        return await output.receive()
    except anyio.EndOfStream:
        return b""


async def _end(process: Process) -> None:
    """Interrupt a command, so that it removes its temporary files, and kill what is left."""
    for number, patience_s in ((signal.SIGINT, GRACE_S), (signal.SIGKILL, None)):
        if process.returncode is None:
            os.killpg(process.pid, number)
            with anyio.move_on_after(patience_s if patience_s is not None else GRACE_S):
                await process.wait()


def without_bulk(value: Any) -> Any:
    """Return JSON without the raw samples and machine facts that would fill an agent's context."""
    if isinstance(value, dict):
        return {key: without_bulk(item) for key, item in value.items() if key not in BULKY}
    return [without_bulk(item) for item in value] if isinstance(value, list) else value


def read_evidence(folder: Path) -> dict[str, Any]:
    """Return what a tuning proved: its headline, plan and candidates.

    Raises:
        ToolError: There is no valid evidence.
    """
    from hasten.report.evidence import load
    from hasten.report.words import headline, next_command, outcome_words

    try:
        found, plan = load(folder / "evidence.json"), folder / "hasten.toml"
    except HastenError as error:
        raise ToolError(str(error)) from error
    return {
        "headline": headline(found).line,
        "ended": found.ended,
        "bottleneck": found.bottleneck and found.bottleneck.words,
        "plan": plan.read_text(encoding="utf-8") if plan.is_file() else None,
        "candidates": [{"name": item.name, "outcome": outcome_words(item), "reason": item.reason} for item in found.rungs],
        "next": next_command(found),
    }


def make_server(root: Path) -> MCPServer:
    """Return the server for a folder."""
    tools, server = Tools(root), MCPServer("hasten", version=__version__, instructions=INSTRUCTIONS)

    @server.tool()
    async def profile(
        context: Context, target: Target, arguments: Arguments = (), seconds: float = 2.5, plan_only: PlanOnly = False
    ) -> Answer:  # fmt: skip
        """Measure where the time of a training job or script goes, and what each remedy could gain at most."""
        options = ["profile", f"--seconds={seconds}"]
        return await tools.run(options, tools.target(target, arguments), context, plan_only=plan_only)

    @server.tool()
    async def tune(
        context: Context, target: Target, arguments: Arguments = (), budget: Budget = "10m", out: Out = "hasten-out",
        plan_only: PlanOnly = False,
    ) -> Answer:  # fmt: skip
        """Search for techniques that are proved to make training faster. Writes a plan and evidence; changes no code."""
        folder = tools.root / tools.within(out)
        options, tail = ["tune", f"--budget={budget}", f"--out={folder}"], tools.target(target, arguments)
        answer = await tools.run(options, tail, context, plan_only=plan_only, fine=(0, 1), json_option=False)
        if answer.ran:
            answer.result = read_evidence(folder)
        return answer

    @server.tool()
    async def check(
        context: Context, target: Target, arguments: Arguments = (), against: str = "", budget: Budget = "10m",
        floor: float = 0.03, plan_only: PlanOnly = False,
    ) -> Answer:  # fmt: skip
        """Say whether the present code trains slower than a commit: faster, same, slower or undecided, in paired runs.

        `against` is a branch (its merge base), tag or commit; the main branch if empty. `floor` is the smallest change that
        counts.
        """
        options = ["check", f"--budget={budget}", f"--floor={floor}", *([f"--against={against}"] if against else [])]
        return await tools.run(options, tools.target(target, arguments), context, plan_only=plan_only, fine=(0, 1, 2))

    @server.tool()
    async def explain(context: Context, technique: str, out: Out = "hasten-out", plan_only: PlanOnly = False) -> Answer:
        """Show everything known about a technique: when it helps, when it does not apply, and what was measured."""
        folder = tools.root / tools.within(out)
        return await tools.run(["explain", f"--out={folder}"], ["--", technique], context, plan_only=plan_only)

    @server.tool()
    def evidence(out: Out = "hasten-out") -> dict[str, Any]:
        """Read what a finished tuning proved: headline, plan, and the outcome of each candidate. Runs nothing."""
        return read_evidence(tools.root / tools.within(out))

    return server


def serve(folder: Path) -> None:
    """Serve tools for a folder on standard input and output, until the input ends.

    Raises:
        HastenError: The folder does not exist.
    """
    if not folder.is_dir():
        raise HastenError(f"--folder {folder} is not a folder.")
    make_server(folder).run("stdio")
