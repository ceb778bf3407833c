"""Profile a script: run it as it is, then once for each thing that could be free; each run in a process of its own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hasten.core.errors import TrialError
from hasten.script.entry.launch import Mode, Seen, Watch, run_watched
from hasten.script.watch.judge import profile, wants_cut, wants_silence


@dataclass(frozen=True, kw_only=True)
class Study:
    """How long each run may observe.

    Attributes:
        updates: Steps at most.
        seconds: Seconds at most, from the first step on.
    """

    updates: int = 200
    seconds: float = 20.0


def profile_script(
    command: Sequence[str], study: Study | None = None, *, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Profile `python COMMAND`; the output of the first run is shown, that of the others is not.

    Raises:
        TrialError: The script failed, or was not seen to train.
    """
    study = study or Study()

    def run(mode: Mode, *, quiet: bool) -> Seen:
        return run_watched(command, Watch(mode=mode, updates=study.updates, seconds=study.seconds), quiet=quiet)

    progress("the script as it is")
    real = run("profile", quiet=False)
    _check(real)
    for why in real.failures.values():
        progress(f"not all of it could be watched: {why.strip().splitlines()[-1]}")
    progress("what if data were free")
    replay = run("replay", quiet=True)
    silent = None
    if wants_silence(real.ranks[0]):
        progress("what if nothing were printed, logged or saved")
        silent = run("silent", quiet=True)
    cut = None
    if wants_cut(real.ranks[0]):
        progress("what if no position were padding")
        cut = run("cut", quiet=True)
    others = (seen.ranks.get(0) if seen else None for seen in (replay, silent, cut))
    return profile(real.ranks[0], *others)


def _check(seen: Seen) -> None:
    if seen.ranks.get(0) is not None and seen.ranks[0]["seconds"]:
        return
    if seen.code == -signal.SIGINT:
        raise KeyboardInterrupt
    for why in seen.failures.values():
        raise TrialError(f"The script ran (exit code {seen.code}), but could not be watched: {why}", kind="raised")
    if seen.code != 0:
        raise TrialError(
            f"The script ended with exit code {seen.code} before its second optimizer step; what it said is above. "
            "Does it run without Hasten?",
            kind="raised",
        )
    if (backwards := (seen.ranks.get(0) or {}).get("backwards", 0)) > 1:
        raise TrialError(
            f"{backwards} backward passes were seen, and no two steps of an optimizer: the script changes its parameters by "
            "hand, or in a way of its own. A step is seen where an optimizer of torch.optim steps; give it one, or call "
            "hasten.step() after each update.",
            kind="raised",
        )
    raise TrialError(
        "No two optimizer steps were seen in the script's own process. Is this the script that trains, and does it use an "
        "optimizer of torch.optim?",
        kind="raised",
    )
