"""Run a command in its own view of the file system, in which all writes go to a scratch folder (Linux).

    python -I -S mounts.py SCRATCH COMMAND ...

`plan.json` in the scratch folder names the covered folders, and paths in them that stay visible.

In a mount namespace of this process, each covered folder becomes an overlay whose lower layer is the folder itself. No other
process sees the overlays, and they end with the last process of the command. Everything that the command writes, in Python,
in native code or in child processes, stays in the scratch folder, which the caller removes. Root only needs permission to
mount. Other users get it in a user namespace, in which they keep their own id, and lose it when the command starts.

Without a command, prints the folders that could not be covered, as JSON. Uses only the standard library.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import signal
import sys
from collections.abc import Sequence

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1


class Kernel:
    """System calls that Python does not provide."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def unshare(self, flags: int) -> None:
        """Leave namespaces that are shared with the parent process."""
        self._check("unshare", self._libc.unshare(flags))

    def mount(self, source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
        """Mount a file system."""
        words = [os.fsencode(word) or None for word in (source, target, kind)]
        result = self._libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(options) or None)
        self._check(f"mount {kind or source}", result)

    def unmount(self, target: str) -> None:
        """Unmount once no process uses the mount."""
        self._check("umount", self._libc.umount2(os.fsencode(target), MNT_DETACH))

    def die_with_parent(self) -> None:
        """Have the kernel kill this process when its parent ends."""
        self._check("prctl", self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))

    @staticmethod
    def _check(what: str, result: int) -> None:
        if result:
            number = ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")


def enter(kernel: Kernel) -> bool:
    """Enter a separate mount namespace. Returns whether a user namespace was needed as well.

    Raises:
        OSError: Neither is permitted.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        kernel.unshare(CLONE_NEWNS)
    except OSError:
        try:
            kernel.unshare(CLONE_NEWNS | CLONE_NEWUSER)
        except OSError as error:
            if error.errno == errno.ENOSPC:  # the limit of namespaces is reached
                raise OSError(errno.EPERM, "user.max_user_namespaces is 0") from error
            raise
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - importing pathlib would take too long
                file.write(text)
        return True
    return False


def cover(scratch: str, covered: Sequence[str], through: Sequence[str]) -> tuple[list[str], bool]:
    """Cover folders with overlays, and bind paths in them that must stay visible.

    Returns the folders that could not be covered, and whether a user namespace was needed.

    Args:
        scratch: A folder outside of all covered folders.
        covered: Absolute paths of folders.
        through: Files and folders that stay visible.

    Raises:
        OSError: Mounting is not permitted.
    """
    kernel = Kernel()
    inside_user = enter(kernel)
    kernel.mount("none", "/", flags=MS_REC | MS_PRIVATE)
    old, left = f"{scratch}/old", list[str]()
    os.mkdir(old)  # noqa: PTH102 - as above
    kernel.mount("/", old, flags=MS_BIND | MS_REC)
    kernel.mount("none", old, flags=MS_REC | MS_PRIVATE)
    wanted = {**dict.fromkeys(through, False), **dict.fromkeys(covered, True)}
    for number, path in enumerate(sorted(wanted, key=lambda path: path.count("/"))):  # parents before children
        if wanted[path]:
            try:
                kernel.mount(
                    "overlay", path, "overlay", options=_layers(scratch, number, old + path, inside_user=inside_user)
                )
                continue
            except OSError:
                left.append(path)
        try:
            kernel.mount(old + path, path, flags=MS_BIND | MS_REC)
        except FileNotFoundError:
            if wanted[path]:
                raise
            # A listed socket may belong to a process that has ended since.
    kernel.unmount(old)
    kernel.die_with_parent()
    return left, inside_user


def _layers(scratch: str, number: int, lower: str, *, inside_user: bool) -> str:
    """Return the mount options of one overlay, and create its folders."""
    upper, work = f"{scratch}/{number}/made", f"{scratch}/{number}/work"
    for folder in (upper, work):
        os.makedirs(folder)  # noqa: PTH103 - as above
    status = os.stat(lower)  # noqa: PTH116 - as above
    os.chmod(upper, status.st_mode & 0o7777)  # noqa: PTH101 - as above
    os.utime(upper, ns=(status.st_atime_ns, status.st_mtime_ns))
    names = [re.sub(r"([\\,:])", r"\\\1", name) for name in (lower, upper, work)]
    more = "userxattr" if inside_user else "redirect_dir=on"  # allows renaming folders; otherwise it fails with EXDEV
    return f"lowerdir={names[0]},upperdir={names[1]},workdir={names[2]},{more}"


def main(words: list[str]) -> None:
    """Cover the folders, and replace this process by the command."""
    scratch, command, here = words[0], words[1:], os.getcwd()  # noqa: PTH109 - as above
    with open(f"{scratch}/plan.json") as file:  # noqa: PTH123 - as above
        plan = json.load(file)
    try:
        left, users = cover(scratch, **plan)
        os.chdir(here)  # enter the covered folder
    except OSError as error:
        if command:
            sys.exit(f"hasten: the script was not started because its files could not be isolated: {error}")
        result: dict[str, object] = {"why": error.strerror or str(error)}
    else:
        if command:
            os.execv(command[0], command)  # noqa: S606 - replaces this process on purpose
        result = {"why": "", "left": left, "users": users}
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
