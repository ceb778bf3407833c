"""Facts measured or read about a job on this machine: plain frozen data, with units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.core.machine import Machine

MOSTLY_WAITING = 0.5
"""Share of batch preparation time spent waiting, above which it counts as mostly waiting."""
MUCH_DATA = 0.1
"""Share of the update spent waiting for data, above which the wait matters."""


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """The properties of a live job, read without running it.

    Attributes:
        device: Device type: `cpu`, `cuda`, ...
        optimizer_class: Name of the optimizer's class, e.g. `AdamW`.
        optimizer_fused: Whether it already runs its fused kernel.
        num_params: Number of trained parameters.
        num_param_tensors: Number of tensors that hold them.
        largest_param: Number of parameters in the largest of these tensors.
        module_counts: Class name -> number of modules.
        repeated_blocks: Size of the largest group of modules of one class in a ModuleList or Sequential; 0 for none.
        param_dtypes: Names of the parameters' dtypes.
        batch_size: Samples per micro-batch.
        accumulation: Micro-batches per update.
        num_samples: Training samples; None for an iterable dataset.
        planned_updates: Updates of the whole run; None if unknown.
        updates_per_epoch: Updates per epoch; None for an iterable dataset.
        has_length: The job defines `length`.
        padding_seen: Its batches end in columns of one value (detected from the batches alone).
        has_collate_packed: The job defines `collate_packed`.
        packs_to_multiple: Its `collate_packed` accepts `multiple`.
        has_counted: The job defines `counted`.
        in_script: The job is an unmodified script.
        samples_vary: Why samples of a script may not be cached or read ahead; empty if they may, and for jobs.
        has_deterministic_transform: The job defines `deterministic_transform`.
        has_quality: The job defines `quality`.
        has_schedule: The job defines a learning-rate schedule.
        read_every: Updates between two readings of the loss.
        zero_grad_to_none: Gradients are freed between updates.
        operator_threads: Threads per operator in the training process; 0 if not measured.
        num_workers: Current number of loader workers.
        pin_memory: Batches are currently page-locked.
        num_threads: Current number of threads that prefetch batches.
        device_prefetch: Batches are currently prefetched to the device.
        shuffle: Each epoch visits the samples in a new order.
        has_getitems: The dataset can read several samples in one call (`__getitems__`).
        is_table: The samples are rows of in-memory tensors, batched by torch's default collate function (scripts only).
        data_path: The file or folder that the dataset reads, if it names one; otherwise empty.
        load_is_random: Reading a sample may draw random numbers.
        finish_is_random: The job has a random transform.
        collate_is_random: Collating may draw random numbers.
        stacks_samples: Samples have one structure of tensors and numbers, which torch's default collate function stacks
            (scripts only).
        kept_compared_frac: Share of samples read again in each epoch to verify cached samples; 0 if the job promises that
            samples never change.
        ranks: Processes that train together.
        forms: Names of the other forms of the job.
        gradient_sync: How gradients are averaged over ranks: `flat` (one message after the backward pass), `buckets` or
            `shards`.
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
    in_script: bool = False
    samples_vary: str = ""
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
    stacks_samples: bool = False
    kept_compared_frac: float = 0.0
    ranks: int = 1
    forms: tuple[str, ...] = ()
    gradient_sync: str = "flat"

    def __post_init__(self) -> None:
        for name in ("param_dtypes", "forms"):  # lists if they come from another process
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def why_not_by_index(self) -> str:
        """Why samples cannot be read by index; empty if they can."""
        if self.num_samples is not None:
            return ""
        source = "the script's batches do not come from" if self.in_script else "the job has an iterable dataset, not"
        return f"{source} a dataset that is read by index"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All facts that `Optimization.fit` may use.

    Attributes:
        machine: The machine.
        job: The properties of the job.
        step_ms: Mean time of an update.
        phase_frac: Phase name -> share of the update's time, 0 to 1.
        ceilings: Counterfactual name -> largest measured gain as a ratio (1.0 = nothing to gain).
        op_frac: Operator name without namespace -> share of the traced step's operator time, 0 to 1.
        op_counts: Operator name -> number of calls in a traced step.
        form_gains: Measured speed of a part of the update in another form relative to its current form: `fused` and
            `foreach` (the optimizer step alone), `gather` (fetching a batch of an in-memory table), `flushed` (denormal
            numbers treated as zero), `threads` (one thread per core), `attention` (fused attention kernels).
        collecting_frac: Share of the update's time spent in Python's garbage collector.
        kernel_frac: Share of the training process's processor time that it spent in the kernel; None if not measured.
        padding_frac: Share of a batch's positions that are padding; 0 if lengths are unknown.
        excess_padding_frac: Share of positions past the longest sample of their batch.
        counted_frac: Share of positions where the loss uses the model's output; 1 if the job does not define `counted`.
        sample_bytes: Bytes of one sample after the deterministic transform; None if it could not be measured.
        load_frac: Share of batch preparation time spent loading samples, including the deterministic transform.
        input_wait_frac: Share of batch preparation time in which the process was waiting, not on a core.
        bf16_matmul_gain: Measured speed of a bfloat16 matrix product relative to float32 on this device; None if not
            measured.
        peak_memory_bytes: Peak memory of the training process.
        memory_limit_bytes: Memory available to the process or the device.
        straggler: Slowest rank's compute time (forward, backward) over the mean of all ranks; 1 if all are equal.
        packages: Import names of the optional packages that are installed.
        epoch_s: Seconds of a whole epoch, including reports, checkpoints and validation; 0 if not measured.
        report_s: Seconds of one metric report.
        reports_per_epoch: Number of metric reports per epoch.
        checkpoint_s: Seconds of the checkpoint at the end of an epoch.
        checkpoint_bytes: Size of that checkpoint.
        validation_s: Seconds of one validation pass; 0 if there is no held-out data.
        validation_batches: Batches of one validation pass.
        tensor_texts_s: Seconds of a validation pass spent computing column widths of printed tensors (scripts only).
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
    kernel_frac: float | None = None
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
        """Return `seconds` as a share of an epoch, below 1. Return 0 if no epoch was measured."""
        return min(max(seconds / self.epoch_s, 0.0), 0.99) if self.epoch_s > 0 else 0.0

    @property
    def waits_for_data(self) -> bool:
        """Whether updates wait for data that itself waits for storage, the network or a sleep.

        Such data still arrives while a process is frozen. Turns of frozen processes would overstate the gain of prefetching.
        """
        return self.input_wait_frac > MOSTLY_WAITING and self.phase_frac.get("data", 0.0) > MUCH_DATA

    @property
    def compute_frac(self) -> float:
        """Share of the update spent in forward and backward."""
        return self.phase_frac.get("forward", 0.0) + self.phase_frac.get("backward", 0.0)

    @property
    def operator_threads(self) -> int:
        """Threads per operator in the training process."""
        return self.job.operator_threads or self.machine.threads.value

    def form_frac(self, name: str, share: float) -> float:
        """Return the share of time that another form of a part would save. Return all of `share` if it was not measured."""
        gain = self.form_gains.get(name)
        return share if gain is None else share * max(1.0 - 1.0 / gain, 0.0)

    def ceiling_frac(self, name: str) -> float:
        """Return a measured ceiling as the largest share of the step's time it could save."""
        return 1.0 - 1.0 / max(self.ceilings.get(name, 1.0), 1.0)
