"""Run the loop of `steps.py` in a process that is watched in some of its turns, and not in the others.

`toggled.py TURNS STEPS WARM` and then the arguments of `steps.py`. TURNS is a digit a turn, 1 where it is watched; a turn is
STEPS steps, and the first begins after WARM of them, which are watched: what is looked at once is over by then. Seams are
put on and taken off between two steps, as an attached process puts them on. After the last turn it goes on unwatched until
it is ended.
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
    """Watches, or does not, as its turn says.

    Args:
        turns: Whether each is watched.
        turn_steps: Steps of a turn.
        warm_steps: Steps before the first.
    """

    def __init__(self, turns: list[bool], turn_steps: int, warm_steps: int) -> None:
        self._turns, self._turn_steps, self._warm_steps = turns, turn_steps, warm_steps
        self._count = 0
        self._recorder = Recorder(updates=0, seconds=0.0, memory=memory_in_use, rests=True)
        self._seams = Seams(self._recorder, Fetch(self._recorder, Trained()))
        self._watching = False
        self.watch(wanted=True)

    def wrap(self, mark: Callable[[Any], None]) -> Callable[[Any], None]:
        """Around the note that a step has ended."""

        def mark_and_toggle(notes: Any) -> None:
            mark(notes)
            self._count += 1
            turn, rest = divmod(self._count - self._warm_steps, self._turn_steps)
            if rest == 0 and turn >= 0:
                self.watch(wanted=turn < len(self._turns) and self._turns[turn])

        return mark_and_toggle

    def watch(self, *, wanted: bool) -> None:
        """Watch from here on, or no more."""
        if wanted == self._watching:
            return
        self._watching = self._recorder.active = wanted
        if wanted:
            self._seams.install()
        else:
            self._seams.remove()


def main() -> None:
    """Train until somebody ends it."""
    turns, turn_steps, warm_steps = sys.argv[1:4]
    del sys.argv[1:4]
    toggle = Toggle([digit == "1" for digit in turns], int(turn_steps), int(warm_steps))
    steps: Any = importlib.import_module("steps")  # beside this file
    steps.Notes.mark = toggle.wrap(steps.Notes.mark)
    steps.main()


if __name__ == "__main__":
    main()
