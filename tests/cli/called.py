"""Call the command in this process, in which torch is loaded already."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from hasten.cli import say
from hasten.cli.main import main


def called(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Return what `hasten ARGUMENTS` prints and its exit status, without starting a process."""
    output, errors, status = io.StringIO(), io.StringIO(), 0
    handler = signal.getsignal(signal.SIGTERM)
    command = ["hasten", *arguments]
    fast = mock.patch.object(say, "LOADING_S", 600.0)  # what is printed does not depend on how busy this machine is
    with fast, mock.patch.object(sys, "argv", command), redirect_stdout(output), redirect_stderr(errors), chdir(cwd or "."):
        try:
            main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            signal.signal(signal.SIGTERM, handler)
    return subprocess.CompletedProcess(command, status, output.getvalue(), errors.getvalue())


@contextmanager
def printed(width: int) -> Iterator[io.StringIO]:
    """Collect what verbs print, as on a terminal of this width without colours."""
    paper = io.StringIO()
    console = say.console
    with (
        mock.patch.object(console, "_file", paper),
        mock.patch.object(console, "_width", width),
        mock.patch.object(console, "_force_terminal", new=True),
        mock.patch.object(console, "_color_system", None),
    ):
        yield paper
