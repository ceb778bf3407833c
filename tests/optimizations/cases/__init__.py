"""One case per optimization, in a module of the optimization's name: add yours beside them."""

from __future__ import annotations

import importlib
import pkgutil

from tests.optimizations.contract import Case

CASES: dict[str, Case] = {
    module.name: importlib.import_module(f"{__name__}.{module.name}").CASE for module in pkgutil.iter_modules(__path__)
}
STARTED = sorted(name for name, case in CASES.items() if case.make().environment())
"""Those that work through the environment a process starts with: `test_environment.py` has their part of the contract."""
GROUPED = sorted(name for name, case in CASES.items() if case.needs_ranks)
"""Those that work among several ranks: `test_ranks.py` has their part of the contract."""
