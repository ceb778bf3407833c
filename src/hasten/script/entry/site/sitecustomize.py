"""Start watching, then load the user's own `sitecustomize`.

Python imports this before a watched script begins. It must not import torch or any other module that the script would not.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

HERE = Path(__file__).resolve().parent


def _begin() -> None:
    """Load the hooks from their file, because `import hasten` would import torch."""
    try:
        spec = importlib.util.spec_from_file_location("_hasten_attach_hooks", HERE.parent / "hooks.py")
        if spec is not None and spec.loader is not None:
            hooks = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(hooks)
            hooks.begin(str(HERE))
    except Exception as error:  # noqa: BLE001 - the script continues after any failure
        sys.stderr.write(f"hasten: the script is not watched: {error!r}\n")


def _chain() -> None:
    """Load the user's own module, as Python would have done.

    Raises:
        ImportError: There is none. Python expects this error and continues.
    """
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != HERE]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_begin()
_chain()
