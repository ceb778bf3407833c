"""`hasten data private`: create keys and a plan for private data, verify the audit log, and erase a person."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.command import JsonOption
from hasten.cli.say import give_json, say
from hasten.core.errors import DataError


def private(
    folder: Annotated[Path, typer.Argument(help="Folder of the plan, the vault and the audit log. Created if missing.")],
    head: Annotated[
        str | None, typer.Option(help="Head of the audit log, as printed earlier: checks that none was cut.")
    ] = None,
    erase: Annotated[
        bool, typer.Option("--erase", help="Erase the key of the person whose name is read from standard input.")
    ] = False,
    json: JsonOption = None,
) -> None:
    """Create keys and a plan for private data. If they exist, verify the audit log, and show the number of persons.

    Names of persons are read from standard input, because other users can see the arguments of a process.
    """
    from hasten.data.private.audit import AuditLog
    from hasten.data.private.plan import PrivatePlan

    if not erase and not (folder / "plan.toml").exists():
        plan = PrivatePlan.create(folder)
        plan.log("create", {})
        say(f"Created {folder}/plan.toml: what is replaced and encrypted, and which role reads what.")
        say(f"Created {folder}/keys: three secret keys. Keep a copy elsewhere: without them, nothing can be read again.")
    plan = PrivatePlan.load(folder)
    vault, log = plan.vault(), AuditLog(folder / "audit.jsonl", plan.secret("audit"))
    log.verify(head)
    if erase:
        person = sys.stdin.readline().rstrip("\n")
        erased = vault.erase(person)
        plan.log("erase", {"person": vault.name_of(person), "erased": int(erased)})
        if not erased:
            raise DataError("the vault has no key of this person: check the spelling. The audit log has a note.")
    persons, num_erased = vault.counts()
    newest = plan.log("verify", {})
    facts = {"num_persons": persons, "num_erased": num_erased, "num_entries": log.verify(newest), "head": newest}
    if give_json(json, facts):
        return
    say(f"{persons:,} persons with a key, {num_erased:,} erased. Audit log: intact, {facts['num_entries']:,} entries.")
    say(f"Head of the log, to keep elsewhere and check later (--head): {facts['head']}")
