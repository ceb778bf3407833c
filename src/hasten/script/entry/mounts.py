"""Run a command in a view of the file system of its own: what it writes lands in a scratch folder (Linux).

    python -I -S mounts.py SCRATCH COMMAND ...

`plan.json` in the scratch folder says which folders are covered, and what in them is not.

In a mount namespace of this process, each covered folder becomes an overlay whose lower layer is the folder itself. No other
process sees that, and with the last process of the command it is gone. What the command writes in Python, in native code
or in processes that it starts stays in the scratch folder, which our caller removes. Root needs no more than the right to
mount; anybody else gets it in a user namespace, in which they keep their own id, and loses it with the command's start.

Without a command, prints which folders could not be covered, as JSON. Standard library only.
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
    """The system calls that Python has no functions for."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def unshare(self, flags: int) -> None:
        """Leave namespaces that are shared with the parent."""
        self._check("unshare", self._libc.unshare(flags))

    def mount(self, source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
        """Mount."""
        words = [os.fsencode(word) or None for word in (source, target, kind)]
        found = self._libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(options) or None)
        self._check(f"mount {kind or source}", found)

    def unmount(self, target: str) -> None:
        """Unmount as soon as nobody uses it."""
        self._check("umount", self._libc.umount2(os.fsencode(target), MNT_DETACH))

    def die_with_parent(self) -> None:
        """End when the parent does."""
        self._check("prctl", self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))

    @staticmethod
    def _check(what: str, result: int) -> None:
        if result:
            number = ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")


def enter(kernel: Kernel) -> bool:
    """Enter a mount namespace of our own. Returns whether that took a user namespace as well.

    Raises:
        OSError: Neither is allowed here.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        kernel.unshare(CLONE_NEWNS)
    except OSError:
        try:
            kernel.unshare(CLONE_NEWNS | CLONE_NEWUSER)
        except OSError as error:
            if error.errno == errno.ENOSPC:  # none may be made
                raise OSError(errno.EPERM, "user.max_user_namespaces is 0") from error
            raise
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - pathlib takes longer to import than all this
                file.write(text)
        return True
    return False


def cover(scratch: str, covered: Sequence[str], through: Sequence[str]) -> tuple[list[str], bool]:
    """Cover folders, and bind back what lies in them and is not to be covered.

    Returns which folders could not be covered, and whether that took a user namespace.

    Args:
        scratch: A folder outside all of these.
        covered: Folders with absolute names.
        through: Files and folders that stay as they are.

    Raises:
        OSError: No mount is allowed here.
    """
    kernel = Kernel()
    inside_user = enter(kernel)
    kernel.mount("none", "/", flags=MS_REC | MS_PRIVATE)
    old, left = f"{scratch}/old", list[str]()
    os.mkdir(old)  # noqa: PTH102 - as above
    kernel.mount("/", old, flags=MS_BIND | MS_REC)
    kernel.mount("none", old, flags=MS_REC | MS_PRIVATE)
    wanted = {**dict.fromkeys(through, False), **dict.fromkeys(covered, True)}
    for number, path in enumerate(sorted(wanted, key=lambda path: path.count("/"))):  # what lies deeper comes later
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
            # The socket of a process that has ended since sockets were listed.
    kernel.unmount(old)
    kernel.die_with_parent()
    return left, inside_user


def _layers(scratch: str, number: int, lower: str, *, inside_user: bool) -> str:
    """The options of one overlay, with folders made for it."""
    upper, work = f"{scratch}/{number}/made", f"{scratch}/{number}/work"
    for folder in (upper, work):
        os.makedirs(folder)  # noqa: PTH103 - as above
    found = os.stat(lower)  # noqa: PTH116 - as above
    os.chmod(upper, found.st_mode & 0o7777)  # noqa: PTH101 - as above
    os.utime(upper, ns=(found.st_atime_ns, found.st_mtime_ns))
    names = [re.sub(r"([\\,:])", r"\\\1", name) for name in (lower, upper, work)]
    more = "userxattr" if inside_user else "redirect_dir=on"  # a folder may be renamed; else as between file systems
    return f"lowerdir={names[0]},upperdir={names[1]},workdir={names[2]},{more}"


def main(words: list[str]) -> None:
    """Cover, and become the command."""
    scratch, command, here = words[0], words[1:], os.getcwd()  # noqa: PTH109 - as above
    with open(f"{scratch}/plan.json") as file:  # noqa: PTH123 - as above
        plan = json.load(file)
    try:
        left, users = cover(scratch, **plan)
        os.chdir(here)  # the folder as it is covered
    except OSError as error:
        if command:
            sys.exit(f"hasten: the script was not started, as what it writes could not be kept apart: {error}")
        found: dict[str, object] = {"why": error.strerror or str(error)}
    else:
        if command:
            os.execv(command[0], command)  # noqa: S606 - that is what this is for
        found = {"why": "", "left": left, "users": users}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
