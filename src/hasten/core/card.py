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
    """The same mathematics with different rounding."""
    TRAINING = "training"
    """Different mathematics: sample order, batch size, schedule."""


class Bottleneck(enum.StrEnum):
    """What can limit the speed of a training job."""

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
    """The measurement that decides whether an optimization pays off."""

    UPDATE_TIME = "update_time"
    """Time of an update per sample, measured in paired turns and in fresh processes over some updates."""
    TIME_TO_TARGET = "time_to_target"
    """Training time until the held-out metric reaches the value of the base, measured in paired whole runs. Used for
    techniques that change how much the model learns per update (learning-rate schedule, batch size)."""


class Trait(enum.Enum):
    """A property of an optimization that other code must take into account without knowing its name."""

    COMPILES = enum.auto()
    """The first updates compile the model or record graphs. They are slow, and tensor methods are not called in them."""
    LOWER_PRECISION = enum.auto()
    """The model returns 16-bit tensors instead of float32."""
    FREES_GRADIENTS = enum.auto()
    """Gradients are None after `zero_grad`, not zeros."""
    MICROBATCH = enum.auto()
    """It sets how many samples are computed at once. See `Optimization.computing`."""
    WHOLE_BATCHES = enum.auto()
    """It acts on finished batches from any source, although its seam is `dataset`."""
    OTHER_DRAWS = enum.auto()
    """The dataset draws different random numbers."""
    TRIMS = enum.auto()
    """Batches become shorter, so dropout draws different random numbers."""
    OTHER_MASKS = enum.auto()
    """Dropout draws different random numbers."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """The description of an optimization, for users and for the search.

    Attributes:
        name: Name in a plan.
        summary: One sentence that a user understands.
        relieves: The bottleneck it acts on.
        numerics: How far it may move the numbers.
        seam: Where it acts.
        source: Where the technique is described.
        hoped_gain: The gain that others report, with its address, as `words (https://...)`. Empty if no figure is known.
            Shown next to the measured gain; not used in any decision.
        prior: Share of the possible gain that it usually brings, from 0 to 1. Only orders the candidates.
        setup_s: One-time cost in seconds before it pays off, such as compilation; 0 for none.
        settle_s: Seconds of updates until a fresh process reaches full speed, for example while kernels are built for each
            new shape; 0 if a few updates are enough.
        event: What it speeds up if not updates: `report`, `checkpoint` or `validation`. Such a technique is measured on
            that event and judged by the time of an epoch.
        memory_technique: Whether it trades time for memory. It is then a candidate only if memory is short.
        saves_memory: Whether it may also lower peak memory. It is then also a candidate if the goal is less memory.
        claims: Resources that only one optimization of a plan may hold.
        after: Names of optimizations it must follow if both are in a plan.
        conflicts: Names of optimizations it cannot be combined with.
        pays_with: Names of optimizations it may pay off with if neither does alone. The search then tries both at once.
        traits: Properties that other code must take into account.
        in_scripts: Whether it can act on an unmodified script.
        script_advice: If it cannot: the reason, and what to write instead. May contain `{source}`, the data that the script
            reads, and `{need}`, the disk space required.
        left_to: Framework whose trainer offers the same (`lightning`, `transformers`) -> what to set there.
        judged_by: What decides whether it pays off. With `TIME_TO_TARGET`, no phase gives a ceiling (`max_gain_frac` is 0
            and causes no refusal), and the technique is tried last, only if the budget allows whole runs.
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
    script_advice: str = "a script has no place where it can act"
    left_to: Mapping[str, str] = field(default_factory=dict)
    judged_by: Judge = Judge.UPDATE_TIME


@dataclass(frozen=True)
class Check:
    """One proof that a mechanism fired: what was checked, whether it passed, and the value seen."""

    name: str
    passed: bool
    seen: str


@dataclass(frozen=True, kw_only=True)
class StepTrace:
    """What one traced training step did.

    Attributes:
        ops: Operator name without namespace (`convolution`, `_fused_adamw_`) -> number of calls.
        op_dtypes: (Operator name, dtype name of its first floating-point output) -> number of calls.
        channels_last: Operator name -> number of 4-d or 5-d outputs that are contiguous in channels-last order only.
        batch_shapes: The shapes of the batch's tensors, in order.
        counters: Counters of the live job (graphs compiled, cache hits, workers alive, backends used).
    """

    ops: Mapping[str, int] = field(default_factory=dict)
    op_dtypes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    channels_last: Mapping[str, int] = field(default_factory=dict)
    batch_shapes: tuple[tuple[int, ...], ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
