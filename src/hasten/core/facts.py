"""What was measured or read about a job on this machine: plain frozen data, with units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hasten.core.machine import Machine

MOSTLY_WAITING = 0.5
"""Share of the time of making batches from which on it is mostly waiting."""
MUCH_DATA = 0.1
"""Share of the update from which on its wait for data matters."""


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """What a live job is made of, read without running it.

    Attributes:
        device: `cpu`, `cuda`, ...
        optimizer_class: Name of the optimizer's class, e.g. `AdamW`.
        optimizer_fused: Whether it already runs its fused kernel.
        num_params: Parameters that are trained.
        num_param_tensors: How many tensors hold them.
        largest_param: Parameters in the largest of these tensors.
        module_counts: Class name of each module -> how many.
        repeated_blocks: Size of the largest group of like modules in a ModuleList or Sequential; 0 for none.
        param_dtypes: Names of the parameters' dtypes.
        batch_size: Samples per micro-batch.
        accumulation: Micro-batches per update.
        num_samples: Training samples; None for an iterable dataset.
        planned_updates: Updates of the whole run; None where unknown.
        updates_per_epoch: None for an iterable dataset.
        has_length: The job says how long a sample is.
        padding_seen: Its batches end in columns of one value, as is seen from outside.
        has_collate_packed: The job can lay samples end to end.
        packs_to_multiple: It can lengthen them to a multiple.
        has_counted: The job says at which positions its loss uses the model's output.
        has_deterministic_transform: The job says which preparation may be kept.
        has_quality: The job says what "not worse" means.
        has_schedule: The job has a learning-rate schedule of its own.
        read_every: Updates between two readings of the loss.
        zero_grad_to_none: Gradients are freed between updates.
        operator_threads: Threads that an operator may use in the process that trains; 0 where that was not asked.
        num_workers: Loader workers at present.
        pin_memory: Batches are page-locked at present.
        num_threads: Threads that read batches ahead at present.
        device_prefetch: Batches are copied to the device ahead at present.
        shuffle: Each epoch visits the samples in a new order.
        has_getitems: The dataset itself reads several samples in one call (`__getitems__`).
        is_table: Its samples are rows of tensors in memory, stacked to batches by torch's own function (a script's).
        data_path: The file or folder that the dataset says it reads; empty where it says none.
        load_is_random: Reading a sample may draw random numbers.
        finish_is_random: The job has a random transform.
        collate_is_random: Collating may draw random numbers.
        kept_compared_frac: Samples that an epoch reads again to compare kept ones with, as a share of all; 0 where the job
            promises that they stay the same.
        ranks: Processes that train together.
        forms: Names of the other forms of the job.
        gradient_sync: How their gradients become one: `flat` (one message after the backward pass), `buckets`, `shards`.
    """

    device: str = "cpu"
    optimizer_class: str = "SGD"
    optimizer_fused: bool = False
    num_params: int = 0
    num_param_tensors: int = 0
    largest_param: int = 0
    module_counts: Mapping[str, int] = field(default_factory=dict)
    repeated_blocks: int = 0
    param_dtypes: tuple[str, ...] = ("float32",)
    batch_size: int = 1
    accumulation: int = 1
    num_samples: int | None = None
    planned_updates: int | None = None
    updates_per_epoch: int | None = None
    has_length: bool = False
    padding_seen: bool = False
    has_collate_packed: bool = False
    packs_to_multiple: bool = False
    has_counted: bool = False
    has_deterministic_transform: bool = False
    has_quality: bool = False
    has_schedule: bool = False
    read_every: int = 1
    zero_grad_to_none: bool = True
    operator_threads: int = 0
    num_workers: int = 0
    pin_memory: bool = False
    num_threads: int = 0
    device_prefetch: bool = False
    shuffle: bool = True
    has_getitems: bool = False
    is_table: bool = False
    data_path: str = ""
    load_is_random: bool = True
    finish_is_random: bool = False
    collate_is_random: bool = False
    kept_compared_frac: float = 0.0
    ranks: int = 1
    forms: tuple[str, ...] = ()
    gradient_sync: str = "flat"

    def __post_init__(self) -> None:
        for name in ("param_dtypes", "forms"):  # lists where they come from another process
            object.__setattr__(self, name, tuple(getattr(self, name)))


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything a `fit` may look at.

    Attributes:
        machine: The machine.
        job: What the job is made of.
        step_ms: Mean time of an update.
        phase_frac: Phase name -> share of the update's time, 0 to 1.
        ceilings: Counterfactual name -> measured largest gain as a ratio (1.0 = nothing to gain).
        op_frac: Operator name without namespace -> share of the traced step's operator time, 0 to 1.
        op_counts: Operator name -> how often it ran in a traced step.
        form_gains: Measured speed of a part of the update in another form, over its present one: `fused` and `foreach` (the
            optimizer's step alone), `gather` (a batch of a table), `flushed`, `threads` and
            `attention` (updates with denormal numbers taken for zero, as many threads as cores, fused attention kernels).
        collecting_frac: Share of the update's time that Python's garbage collector takes.
        padding_frac: Share of a batch's positions that are padding; 0 where lengths are unknown.
        excess_padding_frac: Share of positions past the longest sample of their own batch.
        counted_frac: Share of positions where the loss uses the model's output; 1 where the job does not say.
        sample_bytes: Bytes of one sample after the deterministic transform; None where it could not be measured.
        load_frac: Share of the time spent making batches that goes into loading (and the deterministic transform).
        input_wait_frac: Share of the time spent making batches in which the process was not on a core (waiting).
        bf16_matmul_gain: Measured speed of a bfloat16 matrix product over float32 on this device; None if not measured.
        peak_memory_bytes: Highest memory of the training process.
        memory_limit_bytes: What the process or the device may use.
        straggler: Largest over mean of the ranks' time of computing (forward, backward); 1 where all are alike.
        packages: Those of the optional packages that are installed here, by the name they are imported under.
        epoch_s: Seconds of a whole epoch: its updates and what stands around them; 0 where that was not measured.
        report_s: Seconds of one metric report.
        reports_per_epoch: How many of them an epoch has.
        checkpoint_s: Seconds of the checkpoint at the end of an epoch.
        checkpoint_bytes: Its size.
        validation_s: Seconds of one validation pass; 0 where there is no held-out data.
        validation_batches: Batches of one pass.
        tensor_texts_s: Seconds of it in which the widths of printed tensors were found (a script).
    """

    machine: Machine
    job: JobFacts
    step_ms: float = 0.0
    phase_frac: Mapping[str, float] = field(default_factory=dict)
    ceilings: Mapping[str, float] = field(default_factory=dict)
    op_frac: Mapping[str, float] = field(default_factory=dict)
    op_counts: Mapping[str, int] = field(default_factory=dict)
    form_gains: Mapping[str, float] = field(default_factory=dict)
    collecting_frac: float = 0.0
    padding_frac: float = 0.0
    excess_padding_frac: float = 0.0
    counted_frac: float = 1.0
    sample_bytes: int | None = None
    load_frac: float = 0.0
    input_wait_frac: float = 0.0
    bf16_matmul_gain: float | None = None
    peak_memory_bytes: int = 0
    memory_limit_bytes: int = 0
    straggler: float = 1.0
    packages: tuple[str, ...] = ()
    epoch_s: float = 0.0
    report_s: float = 0.0
    reports_per_epoch: float = 0.0
    checkpoint_s: float = 0.0
    checkpoint_bytes: int = 0
    validation_s: float = 0.0
    validation_batches: int = 0
    tensor_texts_s: float = 0.0

    def epoch_frac(self, seconds: float) -> float:
        """Seconds of an epoch as a share of it, below 1; 0 where an epoch was not measured."""
        return min(max(seconds / self.epoch_s, 0.0), 0.99) if self.epoch_s > 0 else 0.0

    @property
    def waits_for_data(self) -> bool:
        """Whether the update waits for data, and the process for something else meanwhile (storage, network, sleep).

        What is waited for arrives while a process is frozen, so turns of frozen processes would flatter reading ahead.
        """
        return self.input_wait_frac > MOSTLY_WAITING and self.phase_frac.get("data", 0.0) > MUCH_DATA

    @property
    def compute_frac(self) -> float:
        """Share of the update spent in forward and backward."""
        return self.phase_frac.get("forward", 0.0) + self.phase_frac.get("backward", 0.0)

    @property
    def operator_threads(self) -> int:
        """Threads that an operator may use in the process that trains."""
        return self.job.operator_threads or self.machine.threads.value

    def form_frac(self, name: str, share: float) -> float:
        """What a part that takes `share` of the time would save in another form; all of it where that was not measured."""
        gain = self.form_gains.get(name)
        return share if gain is None else share * max(1.0 - 1.0 / gain, 0.0)

    def ceiling_frac(self, name: str) -> float:
        """A measured ceiling as the share of the step's time it could save."""
        return 1.0 - 1.0 / max(self.ceilings.get(name, 1.0), 1.0)
