"""Run the loop of `steps.py` in a process that is watched in some of its turns.

`toggled.py TURNS STEPS WARM`, followed by the arguments of `steps.py`. TURNS has one digit per turn, 1 if it is watched. A
turn has STEPS steps, and the first starts after WARM watched steps, so that one-time inspections are over. Hooks are
installed and removed between two steps, as by an attached process. After the last turn, the process continues unwatched
until it is killed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from hasten.script.watch.fetch import Fetch
from hasten.script.watch.memory import memory_in_use
from hasten.script.watch.record import Recorder
from hasten.script.watch.seams import Seams
from hasten.script.watch.trained import Trained


class Toggle:
    """Switches watching on and off by turns.

    Args:
        turns: Whether each turn is watched.
        turn_steps: Number of steps in a turn.
        warm_steps: Number of steps before the first turn.
    """

    def __init__(self, turns: list[bool], turn_steps: int, warm_steps: int) -> None:
        self._turns, self._turn_steps, self._warm_steps = turns, turn_steps, warm_steps
        self._count = 0
        self._recorder = Recorder(updates=0, seconds=0.0, memory=memory_in_use, rests=True)
        self._seams = Seams(self._recorder, Fetch(self._recorder, Trained()))
        self._watching = False
        self.watch(wanted=True)

    def wrap(self, mark: Callable[[Any], None]) -> Callable[[Any], None]:
        """Wrap the function that records the end of a step."""

        def mark_and_toggle(notes: Any) -> None:
            mark(notes)
            self._count += 1
            turn, rest = divmod(self._count - self._warm_steps, self._turn_steps)
            if rest == 0 and turn >= 0:
                self.watch(wanted=turn < len(self._turns) and self._turns[turn])

        return mark_and_toggle

    def watch(self, *, wanted: bool) -> None:
        """Start or stop watching."""
        if wanted == self._watching:
            return
        self._watching = self._recorder.active = wanted
        if wanted:
            self._seams.install()
        else:
            self._seams.remove()


def main() -> None:
    """Train until the process is killed."""
    turns, turn_steps, warm_steps = sys.argv[1:4]
    del sys.argv[1:4]
    toggle = Toggle([digit == "1" for digit in turns], int(turn_steps), int(warm_steps))
    steps: Any = importlib.import_module("steps")  # in the same folder
    steps.Notes.mark = toggle.wrap(steps.Notes.mark)
    steps.main()


if __name__ == "__main__":
    main()
