"""Watch a training loop from inside, and train under a plan: for people who would rather write a line.

    with hasten.attach() as watched:
        train()
    print(watched.summary())

The seams are those of an attached script (docs/attach.md), put on for the time of the block and taken off at its end. No
ceilings are measured: nothing is run twice. `hasten.step()` ends a step that no optimizer of torch.optim makes.
"""

from __future__ import annotations

import os
from pathlib import Path

from hasten.core.errors import HastenError
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.script.watch.watched import Watched


def attach(plan: str | os.PathLike[str] | Plan | None = None, json: str | os.PathLike[str] | None = None) -> Watched:
    """Watch the training loop inside a `with` block, and train it under a plan if one is given.

    An example::

        with hasten.attach(plan="hasten.toml", json="profile.json") as watched:
            train()
        print(watched.summary())

    Exceptions pass through, everything is taken off at the end, and what fails of ours never ends the training: it stands in
    `watched.failures`, and a warning says so.

    Args:
        plan: A plan, or the file of one. What cannot act on a loop that is not ours, or only on a process that was started
            for it, is named with the reason.
        json: Where to write the profile at the end.

    Raises:
        PlanError: The plan file is missing or wrong.
        HastenError: The folder of `json` is not there.
    """
    target = None if json is None else Path(json)
    if target is not None and not target.absolute().parent.is_dir():
        raise HastenError(f"There is no folder {target.absolute().parent} to write {target.name} to. Make it first.")
    chosen = plan if plan is None or isinstance(plan, Plan) else Plan.load(Path(plan), catalogue())
    return Watched(chosen, target)
