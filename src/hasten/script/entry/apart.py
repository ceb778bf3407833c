"""Keep apart what a measured run writes, so that the user's next run finds everything as it was.

Where Linux allows it, the run has a view of the file system of its own (`mounts`). Elsewhere its folders are listed before
it and put back after it (`snapshot`), and seams on Python's functions for files (`overlay`) guard what is there.
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

SCRATCH = Path("/var/tmp")  # noqa: S108 - it lies on a disk, and outside of what is covered
PREFIX = "hasten-apart-"
SYSTEM = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "lost+found", "nix", "opt", "proc", "run", "sbin"}
    | {"snap", "sys", "usr", "var"}
)
"""Folders at the root that hold the system; one of them is covered where the script works in it, and no further."""
UNCOVERED = re.compile(
    r"autofs|binfmt_misc|cgroup.*|debugfs|devpts|devtmpfs|fuse\..*portal|mqueue|nsfs|proc|squashfs|sysfs|tracefs"
)
"""Kinds of file systems that keep no files of a script."""
CACHES = re.compile(r".*_CACHE|.*_CACHE_(DIR|PATH|HOME)|HF_HOME|TORCH_HOME")
"""Variables that name caches of tools: what is downloaded or compiled once stays, and changes no run."""
MOST_LOOKED_AT = 20_000


class Apart:
    """What one measured run writes.

    Args:
        command: Of the script: a file or `-m` and a module, then its arguments.
        keep: Folders of ours, in which the run leaves what we want of it.
        environ: The environment of the run.

    Attributes:
        prefix: What the command of the process begins with.
        private: Whether the run sees files of its own.
        words: What cannot be kept apart, for the user to know before the run; empty if nothing.
    """

    def __init__(self, command: Sequence[str], keep: Sequence[Path], environ: Mapping[str, str]) -> None:
        self.prefix: tuple[str, ...] = ()
        self.private, self.words = False, ""
        self._scratch: Path | None = None
        self._lock = -1
        self._snapshot: Snapshot | None = None
        folders = places(command)
        plan = _plan(folders, tuple(os.path.realpath(folder) for folder in keep), environ)
        why, left = why_not(folders, plan)
        if why:
            self._snapshot = Snapshot.of(folders, keep)
            self.words = (
                f"This machine gives the run no view of the files of its own ({why}). What it makes in "
                f"{' and '.join(folders)} is moved away afterwards, so let nothing else write there meanwhile; what it "
                f"writes elsewhere stays.{self._snapshot.limits}"
            )
            return
        self.private = True
        if left:
            self.words = f"What the run writes to {', '.join(left)} cannot be kept apart, and stays there."
        self._scratch, self._lock = _new_scratch()
        self.prefix = _command(plan, self._scratch)

    def end(self) -> str:
        """Put everything back. Returns what could not be, in words; call it when the run has ended. Safe to call again."""
        if self._scratch is not None:
            _remove(self._scratch)
            os.close(self._lock)
            self._scratch = None
        if self._snapshot is None:
            return ""
        snapshot, self._snapshot = self._snapshot, None
        return snapshot.release()


def places(command: Sequence[str]) -> tuple[str, ...]:
    """The folders that a script works in: where it is started, where it lies, and those that its arguments name."""
    words = [part for word in command for part in (word, word.partition("=")[2]) if os.sep in part]
    found = {os.path.realpath(Path.cwd())}
    for word in words:
        folder = Path(os.path.realpath(word))
        while not folder.is_dir():
            folder = folder.parent
        if len(folder.parts) > 2 or folder.name not in {"", *SYSTEM, "home", "tmp"}:
            found.add(str(folder))
    return tuple(sorted(path for path in found if not any(_below(path, other) for other in found - {path})))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is covered, and what of it is not."""

    covered: tuple[str, ...]
    through: tuple[str, ...]


def _plan(folders: Sequence[str], keep: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """Cover all that a script may write to: the folders at the root but the system's, and what is mounted below them."""
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
    kept = {os.path.realpath(path) for path in (*caches, *keep, sys.prefix, sys.base_prefix) if os.path.isabs(path)}  # noqa: PTH117 - as above
    kept |= _sockets()
    through |= {path for path in kept if any(_below(path, top) for top in covered) and os.path.exists(path)}  # noqa: PTH110 - as above
    through -= {
        path for path in through if any(path == folder or _below(folder, path) for folder in folders) and path not in keep
    }
    return Plan(covered=tuple(sorted(covered - through)), through=tuple(sorted(through)))


def why_not(folders: Sequence[str], plan: Plan) -> tuple[str, tuple[str, ...]]:
    """Why a run cannot have files of its own here, empty if it can; and then which folders are not covered."""
    if sys.platform != "linux":
        return f"{sys.platform} has no such thing", ()
    why, left, users = _probe(plan)
    if not why and users and (stranger := _stranger(folders)):
        return f"{stranger} belongs to another user or group, which it could not write to", ()
    left = tuple(path for path in left if _is_open(path, plan))
    within = [path for path in left if any(path == folder or _below(folder, path) for folder in folders)]
    return (f"{within[0]} cannot be covered" if within else why), left


@functools.lru_cache(maxsize=8)
def _probe(plan: Plan) -> tuple[str, tuple[str, ...], bool]:
    """Try it: why not, what is left, and whether it takes a user namespace."""
    try:
        scratch, lock = _new_scratch()
    except OSError as error:
        return f"{SCRATCH}: {error.strerror}", (), False
    try:
        done = subprocess.run(_command(plan, scratch), capture_output=True, text=True, check=False, timeout=60)  # noqa: S603 - our own file
        found = json.loads(done.stdout or json.dumps({"why": done.stderr.strip()[-200:]}))
    finally:
        _remove(scratch)
        os.close(lock)
    return found["why"], tuple(found.get("left", ())), found.get("users", False)


def _command(plan: Plan, scratch: Path) -> tuple[str, ...]:
    (scratch / "plan.json").write_text(json.dumps({"covered": plan.covered, "through": plan.through}), encoding="utf-8")
    return (sys.executable, "-I", "-S", mounts.__file__, str(scratch))


def _new_scratch() -> tuple[Path, int]:
    """A new folder, locked as long as we live; those of whoever was killed are removed."""
    for folder in SCRATCH.glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder / "lock", os.O_RDWR)
        except OSError:
            continue  # another user's, or just being made
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
    """Remove a scratch folder, with folders in it that their owner may not look into."""
    for path, names, _ in os.walk(folder):
        for name in names:
            inner = os.path.join(path, name)  # noqa: PTH118 - names
            if not os.path.islink(inner):  # noqa: PTH114 - as above
                os.chmod(inner, 0o700)  # noqa: PTH101 - as above
    shutil.rmtree(folder, ignore_errors=True)


def _is_open(folder: str, plan: Plan) -> bool:
    """Whether this user could write to a folder, or to one in it that is not covered by itself."""
    inner = {entry.path for entry in os.scandir(folder)} if os.access(folder, os.R_OK) else set[str]()
    return any(os.access(path, os.W_OK) for path in {folder, *(inner - set(plan.covered))})


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep) and path != folder


def _own_again(path: str) -> Iterator[str]:
    """Folders of the user's on the way to a path that lie in another user's, which an overlay could not copy."""
    others = False
    for folder in [*reversed(Path(path).parents), Path(path)][2:]:
        own = folder.exists() and folder.stat().st_uid == os.geteuid()
        if own and others:
            yield str(folder)
        others = not own


def _stranger(folders: Sequence[str]) -> str:
    """A file or folder that an overlay of this user's could not copy; empty if there is none."""
    mine = os.geteuid(), os.getegid()
    for number, (path, found) in enumerate(entry for folder in folders for entry in walk(folder)):
        if (found.st_uid, found.st_gid) != mine and os.access(path, os.W_OK):
            return path
        if number > MOST_LOOKED_AT:
            break
    return ""


def _mounted() -> dict[str, bool]:
    """Mount point -> whether files of a script may lie there."""
    found: dict[str, bool] = {}
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        path = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split()[4])
        writable = "ro" not in before.split()[5].split(",")
        if Path(path).is_dir():
            found[path] = writable and not UNCOVERED.fullmatch(after.split()[0])
    return found


def _sockets() -> set[str]:
    """Sockets of running processes: nobody would answer on a copy."""
    lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="surrogateescape").splitlines()[1:]
    return {words[7] for words in (line.split() for line in lines) if len(words) > 7 and words[7].startswith("/")}
