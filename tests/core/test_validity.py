"""A plan that was proved on another machine is recognised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hasten.core.machine import Machine, Reading, read_machine
from hasten.core.plan import Plan
from hasten.core.validity import changed_since_proof, outdated_words
from hasten.optimizations.zero_grad_to_none import ZeroGradToNone

HERE = read_machine()


def proved_on(machine: Machine, *, empty: bool = False) -> Plan:
    facts: dict[str, str | int | float | bool] = {"machine": machine.summary(), "machine_fingerprint": machine.fingerprint()}
    return Plan(optimizations=() if empty else (ZeroGradToNone(),), proved=facts)


def test_the_same_machine_and_plans_without_a_proof_are_valid() -> None:
    more_memory = replace(HERE, memory_limit_bytes=Reading(2**40, "test"))
    assert changed_since_proof(proved_on(HERE), more_memory) == ""
    assert changed_since_proof(Plan(optimizations=(ZeroGradToNone(),)), HERE) == ""
    assert changed_since_proof(proved_on(replace(HERE, torch_version="1.0"), empty=True), HERE) == ""


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (replace(HERE, torch_version="1.0"), f"torch 1.0 then, and torch {HERE.torch_version} now"),
        (replace(HERE, cores=Reading(999, "test")), "999 cores then"),
        (replace(HERE, cpu_flags=frozenset({"none"})), "the processor has other features now"),
    ],
)
def test_what_changed_is_named(there: Machine, words: str) -> None:
    assert words in changed_since_proof(proved_on(there), HERE)


def test_a_run_is_warned() -> None:
    assert outdated_words(proved_on(HERE), HERE, "train.py") == ""
    told = outdated_words(proved_on(replace(HERE, torch_version="1.0")), HERE, "train.py")
    assert told.startswith("this plan was proved elsewhere: torch 1.0 then")
    assert told.endswith("Tune again: hasten tune train.py")
