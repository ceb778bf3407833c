"""How much to measure: full sizes for recorded results, and small ones for checking that everything works."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
TALK_BYTES = 1_300
WINDOW = 1024
PICTURE = (640, 480)
"""Width and height."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Size of each workload.

    Attributes:
        talks: Number of text dialogues.
        tokens: Number of tokens, a multiple of 2**21.
        pictures: Number of JPEG files.
        raw_pictures: Number of images stored as raw pixels.
        store_bytes: Size of the store that is larger than the allowed memory.
        many_talks: Number of dialogues in the conversion.
        rounds: Processes of each system with warm caches, in turns.
        cold_rounds: Processes of each system with cold caches.
        memory_rounds: Processes of each system for its memory.
        seconds: Each process runs whole epochs until this time has passed.
        cache_keys: Number of values in each cache.
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
"""Takes a few minutes, mostly for starting processes. Only shows that everything works."""
