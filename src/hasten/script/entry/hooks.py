"""Decide whether to watch this process, and wait until it has loaded torch.

Uses only the standard library, because it runs in every Python process with Hasten's folder on its path, before the script.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "HASTEN_ATTACH"
AGENTS = frozenset({"torch.distributed.run", "torch.distributed.launch"})
"""Modules that start the ranks of a job and do not train themselves."""


def begin(site_folder: str) -> None:
    """Watch this process if it is the script's own or one of its ranks. Otherwise restore its environment."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        restore_environment(site_folder, None)
        return
    folder = Path(path).parent
    first = _claim(folder)
    if first and is_agent(sys.orig_argv):
        return  # the ranks need the unchanged environment
    now = os.environ.get("PYTHONPATH", "").partition(os.pathsep)[2]
    restore_environment(site_folder, config["pythonpath"] if first else now or None)
    rank = 0 if first else _rank_of(folder)
    if rank is not None:
        wait_for_torch({**config, "folder": str(folder), "rank": rank, "ranked": not first})
    elif any("multiprocessing" in word for word in sys.orig_argv):  # a child process; see `watch.elsewhere`
        wait_for_torch({**config, "folder": str(folder), "rank": os.getpid(), "module": "hasten.script.watch.elsewhere"})


def restore_environment(site_folder: str, pythonpath: str | None) -> None:
    """Restore the environment, so that no process started from here is watched."""
    os.environ.pop(VARIABLE, None)
    now = os.environ.get("PYTHONPATH", "")
    if now.split(os.pathsep)[0] != site_folder:
        return
    if pythonpath is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = pythonpath


def is_agent(command: Sequence[str]) -> bool:
    """Return whether this command line starts ranks: `python -m torch.distributed.run ...` or `torchrun ...`."""
    for before, word in itertools.pairwise(command):
        if before == "-m":
            return word in AGENTS
        if not word.startswith("-"):
            return Path(word).name == "torchrun"
    return False


def _claim(folder: Path) -> bool:
    """Return whether this is the first interpreter in the folder. It stores its process id there."""
    try:
        handle = os.open(folder / "claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        file.write(str(os.getpid()))
    return True


def _rank_of(folder: Path) -> int | None:
    """Return the rank of a process that torchrun started; None for any other process."""
    try:
        parent = int((folder / "claim").read_text(encoding="utf-8"))
        local = int(os.environ["LOCAL_RANK"])
        return int(os.environ.get("RANK", local)) if parent == os.getppid() else None
    except (OSError, ValueError, KeyError):
        return None


def wait_for_torch(config: dict[str, Any]) -> None:
    """Run Hasten's `install` as soon as torch has been imported."""
    sys.meta_path.insert(0, Finder(config))


class Finder:
    """A finder that delegates to Python's own finders, and runs a step after torch has been loaded."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self._asking = False

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of torch; None for any other module."""
        if name != "torch" or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        """Run our step after this loader instance. The change is undone before torch's own code runs."""

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            loader.exec_module(module)
            self._set_to_work()

        loader.exec_module = exec_module

    def _set_to_work(self) -> None:
        try:
            importlib.import_module("hasten.core.own_imports").install(gives_back=True)
            importlib.import_module("hasten.core.late_compiler").install()
            importlib.import_module(self.config.get("module", "hasten.script.watch.session")).install(self.config)
        except Exception:  # noqa: BLE001 - the script continues after any failure
            note_failure(self.config)


def note_failure(config: dict[str, Any]) -> None:
    """Store the current error, which the launcher reports."""
    try:
        path = Path(config["folder"]) / f"failed-{config['rank']}.txt"
        path.write_text(traceback.format_exc(), encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"hasten: the script was not watched, and the reason could not be stored: {error}\n")
