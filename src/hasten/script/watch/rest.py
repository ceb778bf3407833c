"""The steps that a resting watch does not look at: which they are, and what their time is divided into."""

from __future__ import annotations

from collections.abc import Collection, Sequence

FULL_ONE_IN = 4
"""About one step in so many is looked at."""
FULL_STEPS = 16
"""What a step has is told by about so many of the last that were looked at."""
_SCATTER = 2654435761
"""Times the number of a step (Knuth's multiplicative hash): the steps that are looked at follow no period of the script."""


def is_light(step: int) -> bool:
    """Whether a step passes without a look at what each step has."""
    return step * _SCATTER % 2**32 >= 2**32 // FULL_ONE_IN


class Usual:
    """What the time of a step is usually spent on.

    Args:
        phases: How many there are.
        rare: Those that not every step has, which are never guessed.
    """

    def __init__(self, phases: int, rare: Collection[int]) -> None:
        self._rare = rare
        self._sums = [0.0] * phases
        self._shares = list(self._sums)

    def learn(self, step: Sequence[float]) -> None:
        """Take in the seconds by phase of a step that was looked at: its shares, so that no long step outweighs others."""
        usual = [0.0 if phase in self._rare else seconds for phase, seconds in enumerate(step)]
        whole_s = sum(usual)
        if whole_s > 0:
            pairs = zip(self._sums, usual, strict=True)
            self._sums = [before + (seconds / whole_s - before) / FULL_STEPS for before, seconds in pairs]
            known = sum(self._sums)
            self._shares = [share / known for share in self._sums]

    def divided(self, seconds: float) -> list[float]:
        """Seconds by phase of so many seconds that nobody looked at."""
        return [seconds * share for share in self._shares]
