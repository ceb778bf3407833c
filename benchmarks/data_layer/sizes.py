"""How much is measured: for the record, and for a look at whether all of it works."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
TALK_BYTES = 1_300
WINDOW = 1024
PICTURE = (640, 480)
"""Width and height."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much of each workload.

    Attributes:
        talks: Dialogues of the text.
        tokens: A multiple of 2**21.
        pictures: JPEG files.
        raw_pictures: Pictures kept as their pixels.
        store_bytes: Of the store that is larger than the memory allowed.
        many_talks: Dialogues of the conversion.
        rounds: Processes of each system over warm caches, in turns.
        cold_rounds: The same over cold ones.
        memory_rounds: The same for their memory.
        seconds: Each of them goes on for whole epochs until so much time has passed.
        cache_keys: Values that each cache holds.
    """

    talks: int = 200_000
    tokens: int = 100 * 2**21
    pictures: int = 2_000
    raw_pictures: int = 1_000
    store_bytes: int = 8 * GIB
    many_talks: int = 2_000_000
    rounds: int = 5
    cold_rounds: int = 3
    memory_rounds: int = 2
    seconds: float = 4.0
    cache_keys: int = 500


RECORD = Sizes()
SMALL = Sizes(
    talks=4_000, tokens=2**22, pictures=64, raw_pictures=64, store_bytes=2**27, many_talks=20_000, rounds=2, cold_rounds=1,
    memory_rounds=1, seconds=0.05, cache_keys=20,
)  # fmt: skip
"""Some minutes for all of it, most of them for starting processes: shows that it works, and nothing else."""
