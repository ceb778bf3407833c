"""Test case of garbage_collection."""

from __future__ import annotations

from hasten.optimizations.garbage_collection import GarbageCollection
from tests.optimizations.contract import Attention, Case, facts

CASE = Case(make=GarbageCollection, job=Attention, facts=facts(), refused=((facts(collecting_frac=0.0), "did not run"),))
