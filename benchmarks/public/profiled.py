"""Run a script as `__main__` under cProfile until it ends or a time is over.

`python profiled.py OUT SECONDS SCRIPT ARGUMENTS` writes the profile to OUT.
"""

from __future__ import annotations

import cProfile
import os
import runpy
import signal
import sys
from pathlib import Path


class OverError(BaseException):
    """The time is over."""


def _over(_number: int, _frame: object) -> None:
    raise OverError


def _main(out: str, seconds: float, script: str) -> None:
    """Run a script as `__main__` under cProfile until it ends or the time is over, and write the profile."""
    sys.path[0] = str(Path(script).resolve().parent)
    profile, here = cProfile.Profile(), os.getpid()
    signal.signal(signal.SIGALRM, _over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        profile.runcall(runpy.run_path, script, run_name="__main__")
    except OverError:
        pass
    finally:
        if os.getpid() == here:  # not in a process that the script forked
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            profile.dump_stats(out)
            os._exit(0)


if __name__ == "__main__":
    target = sys.argv[3]
    arguments = sys.argv[1:3]
    sys.argv = sys.argv[3:]
    _main(arguments[0], float(arguments[1]), target)
