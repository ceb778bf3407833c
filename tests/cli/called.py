"""The command called in this process, which has torch loaded already."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from hasten.cli.main import main


def called(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What `hasten ARGUMENTS` prints and its exit status, without the start of a process."""
    output, errors, status = io.StringIO(), io.StringIO(), 0
    handler = signal.getsignal(signal.SIGTERM)
    command = ["hasten", *arguments]
    with mock.patch.object(sys, "argv", command), redirect_stdout(output), redirect_stderr(errors), chdir(cwd or "."):
        try:
            main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            signal.signal(signal.SIGTERM, handler)
    return subprocess.CompletedProcess(command, status, output.getvalue(), errors.getvalue())
