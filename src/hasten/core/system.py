"""Query the system: kernel files, the C library, allocators, the initial environment.

Results that affect decisions are pairs of a value and its reason. Nothing here runs at import, and nothing loads torch.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ALLOCATORS: Mapping[str, tuple[str, ...]] = {
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4"),
    "jemalloc": ("libjemalloc.so.2",),
}
"""Allocators that can be preloaded: name -> file names of its library, the preferred one first."""

_SELF = Path("/proc/self")


def read_text(path: Path) -> str:
    """Return the text of a kernel file; empty if it does not exist or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def sysctl(name: str) -> str:
    """Return a value of macOS's sysctl; empty if there is none."""
    try:
        done = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


# Options for starting a process.


def library_folders(environ: Mapping[str, str]) -> list[Path]:
    """Return the usual library folders: LD_LIBRARY_PATH, the Python environment's folder, the system's folders."""
    own = [part for part in environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    triple = f"{platform.machine()}-linux-gnu"
    usual = [f"{sys.prefix}/lib", "/usr/local/lib", f"/usr/lib/{triple}", f"/lib/{triple}", "/usr/lib64", "/usr/lib"]
    return [Path(folder) for folder in dict.fromkeys(own + usual)]


def read_allocators(folders: Iterable[Path]) -> tuple[tuple[str, ...], str]:
    """Return the paths of the installed ALLOCATORS libraries, at most one per allocator, and the folders searched."""
    searched = list(folders)
    found = []
    for names in ALLOCATORS.values():
        paths = (folder / name for name in names for folder in searched)
        found += [str(path) for path in paths if path.is_file()][:1]
    return tuple(found), f"{len(found)} of {', '.join(ALLOCATORS)} found in {', '.join(map(str, searched))}"


def read_c_library() -> tuple[str, str]:
    """Return the version of glibc, such as `glibc 2.36`; empty for another C library, or if unknown."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or ""), "confstr CS_GNU_LIBC_VERSION"
    except (AttributeError, ValueError, OSError):
        return "", f"the C library of this {platform.system()} is not glibc"


def glibc_version(c_library: str) -> tuple[int, ...]:
    """Return `(2, 36)` for `glibc 2.36`; empty for another C library."""
    name, _, version = c_library.partition(" ")
    return tuple(int(part) for part in version.split(".") if part.isdecimal()) if name == "glibc" else ()


# The state this process was started with.


def started_with() -> Mapping[str, str]:
    """Return the environment this process was started with. Later changes by Python do not affect the C library.

    If the kernel does not show it (no /proc, or overwritten by a process title), return the current environment.
    """
    started: dict[str, str] = {}
    for entry in read_text(_SELF / "environ").split("\0"):
        name, equals, value = entry.partition("=")
        if name.startswith("glibc.") and "GLIBC_TUNABLES" in started:  # glibc up to 2.38 splits its variable in place
            started["GLIBC_TUNABLES"] += f":{entry}"
        elif equals:
            started[name] = value
    return started or os.environ


def mapping_at(address: int) -> str:
    """Return the file mapped at an address of this process (`/usr/lib/.../libc.so.6`); empty if there is none."""
    for line in read_text(_SELF / "maps").splitlines():
        first, _, last = line.split(maxsplit=1)[0].partition("-")
        if int(first, 16) <= address < int(last, 16):
            return line[line.index("/") :] if "/" in line else ""
    return ""
