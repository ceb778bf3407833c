"""All functions that create data for the public scripts, by the name that scripts.toml uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from benchmarks.public.prepare import (
    character_bins,
    characters,
    fashion,
    fewer_digits,
    fewer_words,
    mnist,
    pictures,
    words,
)
from benchmarks.public.prepare_arrays import citations, planetoid, scenes, small_digits, spectrograms, super_resolution
from benchmarks.public.prepare_hub import conversations, diffusion, mrpc

MAKERS: Mapping[str, Callable[[Path], None]] = MappingProxyType({
    made.__name__: made for made in (
        characters, character_bins, words, fewer_words, mnist, fewer_digits, fashion, pictures, citations,
        planetoid, super_resolution, scenes, spectrograms, small_digits, mrpc, conversations, diffusion,
    )
})  # fmt: skip
