"""Load the job named on a command line: `package.module:Job` or `path/file.py:Job`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from hasten.core.errors import TargetError
from hasten.core.job import Job, check_job
from hasten.core.user_code import error_words


def load_job(target: str) -> Job:
    """Load the class that `target` names, and return an instance of it.

    Raises:
        TargetError: The file, module or class does not exist, or is not a `hasten.Job`.
        JobError: The job cannot be trained as written.
    """
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise TargetError(f"{target!r} does not name a job. Write it as package.module:Job or path/file.py:Job.")
    module = _load_file(Path(where), target) if where.endswith(".py") else _load_module(where, target)
    kind = getattr(module, name, None)
    if kind is None:
        jobs = [
            key for key, item in vars(module).items() if isinstance(item, type) and issubclass(item, Job) and item is not Job
        ]
        near = difflib.get_close_matches(name, jobs, n=1)
        hint = f" Did you mean {where}:{near[0]}?" if near else ""
        raise TargetError(f"{where} has no `{name}`. Jobs found there: {', '.join(jobs) or 'none'}.{hint}")
    if not (isinstance(kind, type) and issubclass(kind, Job)):
        raise TargetError(f"{target} is not a hasten.Job but {kind!r}. Write `class {name}(hasten.Job)`.")
    job = kind()
    check_job(job)
    return job


def _load_file(path: Path, target: str) -> ModuleType:
    if not path.is_file():
        raise TargetError(f"{target}: the file {path} does not exist (working folder: {Path.cwd()}).")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{target}: {path} cannot be loaded as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise TargetError(f"{target}: loading {path} raised {error_words(error)}") from error
    return module


def _module_name(path: Path) -> str:
    """Return the file's own name, so that other files can import it, or another name if a different module has that name."""
    taken = sys.modules.get(path.stem)
    if taken is None or getattr(taken, "__file__", None) == str(path):
        return path.stem
    return f"hasten_job_{path.stem}"


def _load_module(name: str, target: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):  # a module that the user's code imports
            raise TargetError(f"{target}: importing {name} raised {error_words(error)}") from error
        raise TargetError(f"{target}: no module named {error.name!r} can be found from {Path.cwd()}.") from error
    except Exception as error:
        raise TargetError(f"{target}: importing {name} raised {error_words(error)}") from error
