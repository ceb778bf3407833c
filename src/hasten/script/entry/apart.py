"""Isolate the files that a measured run writes, so that the user's next run finds everything unchanged.

If Linux allows it, the run gets its own view of the file system (`mounts`). Otherwise its folders are recorded before the
run and restored afterwards (`snapshot`), and seams on Python's file functions (`overlay`) protect existing files.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hasten.script.entry import mounts
from hasten.script.entry.snapshot import Snapshot, walk

SCRATCH = Path("/var/tmp")  # noqa: S108 - on a disk, and outside of the covered folders
PREFIX = "hasten-apart-"
SYSTEM = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "lost+found", "nix", "opt", "proc", "run", "sbin"}
    | {"snap", "sys", "usr", "var"}
)
"""System folders at the root. They are not covered, except for folders in them that the script works in."""
UNCOVERED = re.compile(
    r"autofs|binfmt_misc|cgroup.*|debugfs|devpts|devtmpfs|fuse\..*portal|mqueue|nsfs|proc|squashfs|sysfs|tracefs"
)
"""Types of file systems that contain no files of a script."""
CACHES = re.compile(r".*_CACHE|.*_CACHE_(DIR|PATH|HOME)|HF_HOME|TORCH_HOME")
"""Environment variables of cache folders. Downloads and compiled files in them are kept, because they change no results."""
MOST_LOOKED_AT = 20_000
"""Largest number of files whose owner is checked."""


class Apart:
    """Isolates the files that one measured run writes.

    Args:
        command: Command line of the script: a file, or `-m` and a module, then its arguments.
        keep: Hasten's own folders, in which files of the run must remain.
        environ: Environment of the run.
        cwd: Working folder of the run; None for that of this process.

    Attributes:
        prefix: Arguments to put before the command.
        private: Whether the run has its own view of the file system.
        words: Message for the user about files that cannot be isolated; "" if all can.
    """

    def __init__(
        self, command: Sequence[str], keep: Sequence[Path], environ: Mapping[str, str], cwd: Path | None = None
    ) -> None:
        self.prefix: tuple[str, ...] = ()
        self.private, self.words = False, ""
        self._scratch: Path | None = None
        self._lock = -1
        self._snapshot: Snapshot | None = None
        folders = places(command, cwd)
        plan = _plan(folders, tuple(os.path.realpath(folder) for folder in keep), environ)
        why, left = why_not(folders, plan)
        if why:
            self._snapshot = Snapshot.of(folders, keep)
            self.words = (
                f"This run cannot get its own view of the file system ({why}). New files in {' and '.join(folders)} are "
                "moved away after the run, so do not let other programs write there meanwhile. Files that it writes "
                f"elsewhere remain.{self._snapshot.limits}"
            )
            return
        self.private = True
        if left:
            self.words = f"Files that the run writes to {', '.join(left)} cannot be isolated and remain there."
        self._scratch, self._lock = _new_scratch()
        self.prefix = _command(plan, self._scratch)

    def end(self) -> str:
        """Restore all files after the run. Returns a message about those that could not be restored. May be called twice."""
        if self._scratch is not None:
            _remove(self._scratch)
            os.close(self._lock)
            self._scratch = None
        if self._snapshot is None:
            return ""
        snapshot, self._snapshot = self._snapshot, None
        return snapshot.release()


def places(command: Sequence[str], cwd: Path | None = None) -> tuple[str, ...]:
    """Return the folders that a script works in: the working folder, the script's folder, and folders in its arguments."""
    parts = [part for word in command for part in (word, word.partition("=")[2]) if os.sep in part]
    where = os.path.realpath(cwd or Path.cwd())
    folders = {where}
    for word in parts:
        folder = Path(os.path.realpath(Path(where, word)))
        while not folder.is_dir():
            folder = folder.parent
        if len(folder.parts) > 2 or folder.name not in {"", *SYSTEM, "home", "tmp"}:
            folders.add(str(folder))
    return tuple(sorted(path for path in folders if not any(_below(path, other) for other in folders - {path})))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Folders to cover with an overlay, and paths in them that stay visible (`through`)."""

    covered: tuple[str, ...]
    through: tuple[str, ...]


def _plan(folders: Sequence[str], keep: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """Cover all folders that a script may write to: non-system folders at the root, and file systems mounted below them."""
    covered = {entry.path for entry in os.scandir("/") if entry.name not in SYSTEM and entry.is_dir(follow_symlinks=False)}
    home = os.path.realpath(environ.get("HOME", "/"))
    covered |= {path for path in folders if not any(_below(path, top) for top in covered)}
    covered |= {own for path in (*folders, home) for own in _own_again(path)}
    mounted = _mounted()
    inner = {path for path in mounted if any(_below(path, top) for top in covered)}
    covered = {path for path in covered | inner if mounted.get(path, True)}
    through = inner - covered
    caches = [value for name, value in environ.items() if CACHES.fullmatch(name)]
    caches += [os.path.join(home, name) for name in (".cache", ".triton", ".nv")]  # noqa: PTH118 - names
    visible = {os.path.realpath(path) for path in (*caches, *keep, sys.prefix, sys.base_prefix) if os.path.isabs(path)}  # noqa: PTH117 - as above
    visible |= _sockets()
    through |= {path for path in visible if any(_below(path, top) for top in covered) and os.path.exists(path)}  # noqa: PTH110 - as above
    through -= {
        path for path in through if any(path == folder or _below(folder, path) for folder in folders) and path not in keep
    }
    return Plan(covered=tuple(sorted(covered - through)), through=tuple(sorted(through)))


def why_not(folders: Sequence[str], plan: Plan) -> tuple[str, tuple[str, ...]]:
    """Return why a run cannot have its own view of the file system, "" if it can, and the folders that are not covered."""
    if sys.platform != "linux":
        return f"not supported on {sys.platform}", ()
    why, left, users = _probe(plan)
    if not why and users and (stranger := _stranger(folders)):
        return f"{stranger} belongs to another user or group and would not be writable", ()
    left = tuple(path for path in left if _is_open(path, plan))
    within = [path for path in left if any(path == folder or _below(folder, path) for folder in folders)]
    return (f"{within[0]} cannot be covered" if within else why), left


@functools.lru_cache(maxsize=8)
def _probe(plan: Plan) -> tuple[str, tuple[str, ...], bool]:
    """Try to cover the folders. Returns the reason of failure, uncovered folders, and whether a user namespace is used."""
    try:
        scratch, lock = _new_scratch()
    except OSError as error:
        return f"{SCRATCH}: {error.strerror}", (), False
    try:
        done = subprocess.run(_command(plan, scratch), capture_output=True, text=True, check=False, timeout=60)  # noqa: S603 - runs our own file
        result = json.loads(done.stdout or json.dumps({"why": done.stderr.strip()[-200:]}))
    finally:
        _remove(scratch)
        os.close(lock)
    return result["why"], tuple(result.get("left", ())), result.get("users", False)


def _command(plan: Plan, scratch: Path) -> tuple[str, ...]:
    (scratch / "plan.json").write_text(json.dumps({"covered": plan.covered, "through": plan.through}), encoding="utf-8")
    return (sys.executable, "-I", "-S", mounts.__file__, str(scratch))


def _new_scratch() -> tuple[Path, int]:
    """Create a folder that stays locked while this process lives. Removes folders of killed processes."""
    for folder in SCRATCH.glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder / "lock", os.O_RDWR)
        except OSError:
            continue  # another user's, or just being created
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(lock)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=SCRATCH))
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / ".lock").rename(folder / "lock")
    return folder, lock


def _remove(folder: Path) -> None:
    """Remove a scratch folder, including folders in it without read permission."""
    for path, names, _ in os.walk(folder):
        for name in names:
            inner = os.path.join(path, name)  # noqa: PTH118 - os.walk yields strings
            if not os.path.islink(inner):  # noqa: PTH114 - as above
                os.chmod(inner, 0o700)  # noqa: PTH101 - as above
    shutil.rmtree(folder, ignore_errors=True)


def _is_open(folder: str, plan: Plan) -> bool:
    """Return whether this user could write to a folder, or to a subfolder that is not covered separately."""
    inner = {entry.path for entry in os.scandir(folder)} if os.access(folder, os.R_OK) else set[str]()
    return any(os.access(path, os.W_OK) for path in {folder, *(inner - set(plan.covered))})


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep) and path != folder


def _own_again(path: str) -> Iterator[str]:
    """Yield the user's folders along a path that are in another user's folder, which an overlay could not copy."""
    others = False
    for folder in [*reversed(Path(path).parents), Path(path)][2:]:
        own = folder.exists() and folder.stat().st_uid == os.geteuid()
        if own and others:
            yield str(folder)
        others = not own


def _stranger(folders: Sequence[str]) -> str:
    """Return a file or folder that an overlay of this user could not copy; "" if there is none."""
    mine = os.geteuid(), os.getegid()
    for number, (path, status) in enumerate(entry for folder in folders for entry in walk(folder)):
        if (status.st_uid, status.st_gid) != mine and os.access(path, os.W_OK):
            return path
        if number > MOST_LOOKED_AT:
            break
    return ""


def _mounted() -> dict[str, bool]:
    """Return, for each mount point, whether a script's files may be there."""
    points: dict[str, bool] = {}
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        path = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split()[4])
        writable = "ro" not in before.split()[5].split(",")
        if Path(path).is_dir():
            points[path] = writable and not UNCOVERED.fullmatch(after.split()[0])
    return points


def _sockets() -> set[str]:
    """Return the sockets of running processes. They must stay visible, because no process answers on a copy."""
    lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="surrogateescape").splitlines()[1:]
    return {fields[7] for fields in (line.split() for line in lines) if len(fields) > 7 and fields[7].startswith("/")}
