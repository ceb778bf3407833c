"""The card of an optimization, which describes it without running it, and the checks that prove it ran."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hasten.core.seams import Seam


class Numerics(enum.StrEnum):
    """How far an optimization may move the numbers."""

    EXACT = "exact"
    """Bit-equal losses."""
    ROUNDING = "rounding"
    """The same mathematics, rounded otherwise."""
    TRAINING = "training"
    """Other mathematics: order, batch size, schedule."""


class Bottleneck(enum.StrEnum):
    """What can hold a training job back."""

    INPUT = "input"
    TRANSFER = "transfer"
    COMPUTE = "compute"
    PADDING = "padding"
    OPTIMIZER = "optimizer"
    LOGGING = "logging"
    VALIDATION = "validation"
    CHECKPOINT = "checkpoint"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    OTHER = "other"


class Judge(enum.StrEnum):
    """What decides whether an optimization pays."""

    UPDATE_TIME = "update_time"
    """The time of an update, per sample: paired turns and fresh processes over some updates."""
    TIME_TO_TARGET = "time_to_target"
    """The training time until the held-out metric reaches what the base reaches: paired whole runs. For what changes how
    much an update teaches (learning-rate schedule, batch size), of which the time of an update says nothing."""


class Trait(enum.Enum):
    """What an optimization does that its surroundings must take into account, without knowing which one it is."""

    COMPILES = enum.auto()
    """The first updates compile the model or record graphs: they are slow, and tensors' methods are not seen in them."""
    LOWER_PRECISION = enum.auto()
    """The model returns 16-bit tensors where it returned float32."""
    FREES_GRADIENTS = enum.auto()
    """Gradients are None after `zero_grad`, not zeros."""
    MICROBATCH = enum.auto()
    """It sets how many samples are computed at once, see `Optimization.computing`."""
    WHOLE_BATCHES = enum.auto()
    """It acts on finished batches, although its seam is that of the samples; where they come from does not matter."""
    OTHER_DRAWS = enum.auto()
    """Random numbers that the dataset draws are others."""
    TRIMS = enum.auto()
    """Batches become shorter, so dropout draws other random numbers."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What an optimization is, for people and for the ladder.

    Attributes:
        name: As it stands in a plan.
        summary: One sentence a user understands.
        relieves: The bottleneck it acts on.
        numerics: How far it may move the numbers.
        seam: Where it acts.
        source: Where the technique is described.
        hoped_gain: What its source or its fans promise, and the address where they do, as `words (https://...)`; empty where
            no figure is known. Shown beside what was measured, and decides nothing.
        prior: Share of the possible gain it usually brings, from 0 to 1; orders the ladder, decides nothing.
        setup_s: Seconds it usually costs once, before it pays (compilation); 0 for none.
        settle_s: Seconds of updates until a fresh process is as fast as it will be (kernels made for every shape it meets);
            0 where a few updates do.
        event: What it changes, where that is no update but stands around them: `report`, `checkpoint` or `validation`. Such
            a technique is measured by that event and judged by the time of an epoch.
        memory_technique: Whether it buys memory with time; then it is a candidate only where memory is short.
        saves_memory: Whether it may lower the peak memory as well; a candidate where that is what is wanted.
        claims: What only one optimization of a plan may hold.
        after: Names it must follow where both are in a plan.
        conflicts: Names it cannot be with.
        pays_with: Names that it may pay together with where neither pays alone; the ladder then tries both at once.
        traits: What its surroundings must take into account.
        in_scripts: Whether it can act on an unmodified script.
        script_advice: Where it cannot: why, and what to write instead. May name `{source}`, the data that the script reads,
            and `{need}`, what it takes on disk.
        left_to: Frameworks whose trainer does the same itself (`lightning`, `transformers`) -> what to set there.
        judged_by: What decides whether it pays. By time to target, its ceiling is not known from any phase (`max_gain_frac`
            is 0 and refuses nothing), it is tried last, and only where the budget holds whole runs.
    """

    name: str
    summary: str
    relieves: Bottleneck
    numerics: Numerics
    seam: Seam
    source: str
    hoped_gain: str = ""
    prior: float = 0.5
    setup_s: float = 0.0
    settle_s: float = 0.0
    event: Literal["", "report", "checkpoint", "validation"] = ""
    memory_technique: bool = False
    saves_memory: bool = False
    claims: frozenset[str] = frozenset()
    after: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    pays_with: tuple[str, ...] = ()
    traits: frozenset[Trait] = frozenset()
    in_scripts: bool = False
    script_advice: str = "it has no seam there"
    left_to: Mapping[str, str] = field(default_factory=dict)
    judged_by: Judge = Judge.UPDATE_TIME


@dataclass(frozen=True)
class Check:
    """One proof that a mechanism fired: what was looked for, whether it was there, what was seen."""

    name: str
    passed: bool
    seen: str


@dataclass(frozen=True, kw_only=True)
class StepTrace:
    """What one traced training step did.

    Attributes:
        ops: How often each operator ran, by name without namespace (`convolution`, `_fused_adamw_`).
        op_dtypes: How often each (operator, dtype name of its first floating output) occurred.
        channels_last: How often each operator gave a 4-d or 5-d output that lies in channels-last order and in no other.
        batch_shapes: The shapes of the batch's tensors, in order.
        counters: What the live parts counted (graphs compiled, cache hits, workers alive, backends used).
    """

    ops: Mapping[str, int] = field(default_factory=dict)
    op_dtypes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    channels_last: Mapping[str, int] = field(default_factory=dict)
    batch_shapes: tuple[tuple[int, ...], ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
