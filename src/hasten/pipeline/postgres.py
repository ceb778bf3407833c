"""A PostgreSQL server of one's own: its data in a folder, and a socket that only its user can open instead of a port.

PostgreSQL refuses to run as root. For root, it runs as the system user `postgres`, who then owns the folder.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

from hasten.core.errors import MachineError

USER = "postgres"
DATA, LOG = "data", "log"
SOCKET = ".s.PGSQL.5432"
SETTINGS = """
listen_addresses = '' # no port
unix_socket_directories = '..' # the folder above the data, which only the user can enter
"""
_LONGEST_SOCKET = 107
"""Bytes in the path of a socket (`man 7 unix`)."""
_START_S, _TRIES = 300, 10
"""Seconds for a start, as a killed server recovers first; and tries, as processes of a killed server may still be ending."""


def url_of(folder: Path) -> str:
    """Return the address of the server in this folder, as SQLAlchemy takes it."""
    return f"postgresql+psycopg2://{USER}@/{USER}?host={quote(str(folder))}"


def is_running(folder: Path) -> bool:
    """Whether a server answers in this folder."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(folder / SOCKET))
        except OSError:
            return False
    return True


def start(folder: Path, tell: Callable[[str], None] = lambda _: None) -> bool:
    """Start the server in a folder, unless it runs. Its data are made first if they are missing.

    Args:
        folder: The folder. It is created for its user alone (mode 0700).
        tell: Called with words for each step.

    Returns:
        Whether it was started.

    Raises:
        MachineError: PostgreSQL is missing, or cannot run here.
    """
    if (length := len(os.fsencode(folder / SOCKET))) > _LONGEST_SOCKET:
        raise MachineError(
            f"{folder / SOCKET} has {length} bytes, and the path of a socket may have {_LONGEST_SOCKET}. "
            f"Choose a folder with a shorter path."
        )
    if is_running(folder):
        return False
    initdb, pg_ctl, as_user = _program("initdb"), _program("pg_ctl"), _user(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if as_user:
        shutil.chown(folder, as_user["user"], as_user["group"])
    data, new = folder / DATA, folder / f"{DATA}.new"
    if not data.exists():
        tell("creating a PostgreSQL database")
        shutil.rmtree(new, ignore_errors=True)  # of a start that was killed
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", f"--username={USER}"]
        made = _run([initdb, *options, str(new)], folder, as_user)
        if made.returncode:
            raise MachineError(f"initdb failed: {_last_line(made.stdout)}. Free some space or correct it, and start again.")
        with (new / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(SETTINGS)
        new.rename(data)
    tell("starting PostgreSQL")
    _remove_stale(data)
    command = [pg_ctl, "start", "-D", str(data), "-l", str(folder / LOG), "-w", "-t", str(_START_S)]
    for _ in range(_TRIES):
        started = _run(command, folder, as_user)
        if started.returncode == 0:
            return True
        time.sleep(1.0)
    log = folder / LOG
    words = _last_line(log.read_text(encoding="utf-8", errors="replace") if log.exists() else started.stdout)
    raise MachineError(f"PostgreSQL did not start: {words}. Its output is in {log}.")


def stop(folder: Path) -> None:
    """Stop the server, and wait until it has ended.

    Raises:
        MachineError: It does not end.
    """
    if is_running(folder):
        ended = _run([_program("pg_ctl"), "stop", "-D", str(folder / DATA), "-m", "fast", "-w"], folder, _user(folder))
        if ended.returncode:
            raise MachineError(f"PostgreSQL in {folder} did not end: {_last_line(ended.stdout)}.")


def _program(name: str) -> str:
    """Return the path of a program of PostgreSQL; Debian keeps them outside of PATH."""

    def version(path: Path) -> float:
        return float(path.parts[-3]) if path.parts[-3].replace(".", "", 1).isdecimal() else 0.0

    found = shutil.which(name) or max(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=version, default=None)
    if found is None:
        raise MachineError(
            "the queue needs PostgreSQL, which is not installed: sudo apt-get install postgresql. "
            "Or name a server of yours: --postgres URL."
        )
    return str(found)


def _user(folder: Path) -> dict[str, Any]:
    """Return as whom the server has to run, as arguments of `subprocess.run`; empty for this user.

    Raises:
        MachineError: This user is root, and there is no other user who could.
    """
    if os.geteuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam(USER)
    except KeyError:
        raise MachineError(
            f"PostgreSQL refuses to run as root, and there is no system user {USER} to run it as. "
            f"Create one (useradd --system {USER}), or start the queue as another user."
        ) from None
    for above in folder.parents:
        mode, group = above.stat().st_mode, above.stat().st_gid
        if above.exists() and not (mode & 0o001 or (group == entry.pw_gid and mode & 0o010)):
            raise MachineError(
                f"PostgreSQL refuses to run as root, and the system user {USER} cannot enter {above}. "
                f"Choose a folder elsewhere, such as /srv/hasten-queue."
            )
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _run(command: list[str], folder: Path, as_user: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(  # noqa: S603 - programs of PostgreSQL
        command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, **as_user,
    )  # fmt: skip


def _remove_stale(data: Path) -> None:
    """Remove the lock file of a server that was killed, if its process number now belongs to another program."""
    file = data / "postmaster.pid"
    with suppress(OSError, ValueError, psutil.Error):
        if psutil.Process(int(file.read_text(encoding="utf-8").split()[0])).name() != "postgres":
            file.unlink()


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")
