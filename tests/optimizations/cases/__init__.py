"""One case per optimization, in a module with the name of the optimization. Add yours here."""

from __future__ import annotations

import importlib
import pkgutil

from tests.optimizations.contract import Case

CASES: dict[str, Case] = {
    module.name: importlib.import_module(f"{__name__}.{module.name}").CASE for module in pkgutil.iter_modules(__path__)
}
STARTED = sorted(name for name, case in CASES.items() if case.make().environment())
"""Optimizations that set environment variables. `test_environment.py` tests their part of the contract."""
GROUPED = sorted(name for name, case in CASES.items() if case.needs_ranks)
"""Optimizations that need several ranks. `test_ranks.py` tests their part of the contract."""
