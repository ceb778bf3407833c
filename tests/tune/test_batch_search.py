"""The search for a microbatch size: its logic on a simulated machine, and its measurements on small real jobs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import hasten
from hasten.core.errors import FailureKind, JobError, PlanError, TrialError
from hasten.core.job import Job
from hasten.core.plan import Plan
from hasten.core.target import load_job
from hasten.optimizations import catalogue
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.tune.batch import search as batch_search
from hasten.tune.batch.choice import Size
from hasten.tune.batch.measure import Race, Survey, TrialLab, Turn, WorstCase
from hasten.tune.batch.search import Finding, search_batch
from hasten.tune.budget import Budget
from hasten.tune.trials.longest_samples import find_longest, hold_longest, micro_batch_size, sample_bytes
from hasten.tune.trials.trial import Trial, TrialSetting
from tests.optimizations.contract import CPU, Ragged
from tests.train.jobs import Plain, Streamed
from tests.tune.jobs import write_job

MIB = 2**20


# A simulated machine.


@dataclass
class Played:
    """A machine with given speeds and memory: 100 + 10 bytes per sample of 1000, by default."""

    batch_size: int = 4
    accumulation: int = 4
    speeds: dict[int, float] = field(default_factory=dict)
    peaks: dict[int, int] = field(default_factory=dict)
    fails: dict[int, FailureKind] = field(default_factory=dict)
    fails_for_longer: dict[int, FailureKind] = field(default_factory=dict)
    fails_in_turns: dict[int, FailureKind] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    clash: dict[int, str] = field(default_factory=dict)
    spoilt: set[tuple[int, int]] = field(default_factory=set)
    scatter: Callable[[int, int], float] = lambda _size, _number: 1.0
    host_limit_bytes: int = 10**6
    held: list[tuple[int, int]] = field(default_factory=list)
    raced: list[tuple[list[int], bool]] = field(default_factory=list)
    turned: list[int] = field(default_factory=list)

    def survey(self) -> Survey:
        return Survey(
            batch_size=self.batch_size, accumulation=self.accumulation, refused=self.refused,
            host_limit_bytes=self.host_limit_bytes,
        )  # fmt: skip

    def hold(self, size: Size, updates: int) -> WorstCase:
        self.held.append((size.samples, updates))
        if size.samples in self.clash:
            raise PlanError(self.clash[size.samples])
        failing = self.fails if updates == batch_search.FIRST_UPDATES else self.fails_for_longer
        if size.samples in failing:
            raise TrialError("words of the trial", kind=failing[size.samples])
        peak = self.peaks.get(size.samples, 100 + 10 * size.samples)
        whole = self.batch_size * self.accumulation
        seconds = whole / self._speed(size.samples)
        return WorstCase(update_s=seconds, typical_s=seconds, peak_bytes=peak, limit_bytes=1000)

    @contextmanager
    def race(self, sizes: Sequence[Size], *, together: bool) -> Iterator[Race]:
        self.raced.append(([size.samples for size in sizes], together))
        yield self

    def turn(self, size: Size, updates: int, number: int) -> Turn:
        self.turned.append(size.samples)
        if size.samples in self.fails_in_turns and number == 1:
            raise TrialError("words of the turn", kind=self.fails_in_turns[size.samples])
        spoilt = (size.samples, number) in self.spoilt
        return Turn(self._speed(size.samples) * self.scatter(size.samples, number) * (0.05 if spoilt else 1.0), spoilt)

    def _speed(self, samples: int) -> float:
        return self.speeds.get(samples, 100.0)


def why(found: Finding) -> dict[int, str]:
    return {item.size: item.why for item in found.candidates}


def chosen(found: Finding) -> int | None:
    return found.chosen.samples if found.chosen else None


def test_the_fastest_is_chosen_and_not_the_largest() -> None:
    lab = Played(speeds={1: 60.0, 2: 80.0, 4: 100.0, 8: 140.0, 16: 120.0})
    found = search_batch(lab)
    assert chosen(found) == 8
    assert found.chosen is not None
    assert found.chosen.settings() == {"merged_microbatches": {"merge": 2}}
    assert [item.size for item in found.candidates] == [1, 2, 4, 8, 16]
    assert all(item.fits and not item.why for item in found.candidates)
    assert found.optimizer_batch == 16
    assert lab.raced == [([1, 2, 4, 8, 16], True)]
    assert lab.held[-1] == (8, batch_search.MAX_CONFIRMED)


def test_turns_are_interleaved_in_alternating_order() -> None:
    lab = Played(batch_size=2, accumulation=2, speeds={1: 100.0, 2: 101.0, 4: 102.0})
    search_batch(lab)
    assert lab.turned[:9] == [1, 2, 4, 4, 2, 1, 1, 2, 4]
    assert len(lab.turned) == 3 * batch_search.MAX_TURNS  # they cannot be distinguished, so none is dropped


def test_a_slow_round_of_the_machine_changes_nothing() -> None:
    drift = [1.0, 0.2, 1.5, 0.6, 1.1]
    lab = Played(speeds={4: 100.0, 8: 110.0, 16: 90.0}, scatter=lambda _size, number: drift[number % 5])
    found = search_batch(lab)
    assert chosen(found) == 8
    for item in found.candidates:
        assert item.low == pytest.approx(item.samples_per_s)
        assert item.high == pytest.approx(item.samples_per_s)


def test_a_disturbed_round_is_repeated_for_all_sizes() -> None:
    lab = Played(batch_size=2, accumulation=2, speeds={1: 70.0, 2: 80.0, 4: 100.0}, spoilt={(4, 0), (4, 2), (1, 3)})
    found = search_batch(lab)
    assert chosen(found) == 4
    assert [lab.turned.count(size) for size in (1, 2, 4)] == [batch_search.TURNS_TO_JUDGE + 3] * 3
    for item, speed in zip(found.candidates, (70.0, 80.0, 100.0), strict=True):
        assert item.low == item.high == pytest.approx(speed)


def test_constant_disturbance_does_not_block_the_search() -> None:
    lab = Played(batch_size=2, accumulation=1, spoilt={(2, number) for number in range(1000)})
    assert search_batch(lab).chosen is not None
    assert len(lab.turned) <= 2 * (batch_search.MAX_TURNS + batch_search.MAX_RETAKEN)


def test_a_clearly_slower_size_takes_no_further_turn() -> None:
    lab = Played(speeds={1: 80.0, 2: 85.0, 4: 100.0, 8: 150.0, 16: 149.0})
    found = search_batch(lab)
    assert chosen(found) == 8  # within 3 % of 16: less memory
    assert [lab.turned.count(size) for size in (1, 2, 4)] == [batch_search.TURNS_TO_JUDGE] * 3
    assert lab.turned.count(16) == batch_search.MAX_TURNS
    assert all(item.samples_per_s for item in found.candidates)


def test_a_size_that_does_not_fit_ends_the_upward_search_only() -> None:
    lab = Played(fails={8: "out_of_memory"}, speeds={1: 90.0, 2: 120.0})
    found = search_batch(lab)
    assert chosen(found) == 2
    assert why(found) == {1: "", 2: "", 4: "", 8: "out of memory", 16: "not tried: 8 did not fit"}
    assert [size for size, _ in lab.held[:-1]] == [4, 8, 2, 1]


def test_the_jobs_own_size_may_be_too_large() -> None:
    lab = Played(fails={4: "out_of_memory", 2: "out_of_memory"})
    found = search_batch(lab)
    assert chosen(found) == 1
    assert found.chosen is not None
    assert found.chosen.settings() == {"microbatch": {"parts": 4}}
    assert why(found)[8] == "not tried: 4 did not fit"


def test_head_room_is_kept() -> None:
    lab = Played(peaks={8: 905, 16: 950})
    assert why(search_batch(lab))[8] == "leaves 9.5% of the memory free, less than the required headroom of 10.0%"
    found = search_batch(lab, head_room_frac=0.07)
    assert found.candidates[3].fits
    assert found.candidates[4].why == "leaves 5.0% of the memory free, less than the required headroom of 7.0%"
    assert (found.head_room_frac, found.limit_bytes) == (0.07, 1000)


def test_a_winner_that_fails_a_longer_run_yields_to_the_next() -> None:
    lab = Played(
        speeds={1: 90.0, 2: 100.0, 4: 110.0, 8: 130.0, 16: 150.0},
        fails_for_longer={16: "out_of_memory", 8: "killed"},
    )
    found = search_batch(lab)
    assert chosen(found) == 4
    assert why(found)[16] == "failed in a longer run: out of memory"
    assert why(found)[8] == "failed in a longer run: words of the trial"
    assert [item.fits for item in found.candidates] == [True, True, True, False, False]


def test_a_size_that_fails_in_its_turns_is_dropped() -> None:
    lab = Played(speeds={16: 300.0}, fails_in_turns={16: "out_of_memory"})
    found = search_batch(lab)
    assert chosen(found) != 16
    assert why(found)[16] == "out of memory"
    assert lab.turned.count(16) == 2


def test_nothing_fits() -> None:
    found = search_batch(Played(fails=dict.fromkeys((1, 2, 4), "out_of_memory")))
    assert found.chosen is None
    assert found.to_dict()["chosen"] is None
    assert not any(item.fits for item in found.candidates)


@pytest.mark.parametrize("kind", ["raised", "nan", "hung"])
def test_a_job_that_fails_unmodified_is_an_error_of_the_job(kind: FailureKind) -> None:
    with pytest.raises(TrialError, match="words of the trial"):
        search_batch(Played(fails={4: kind}))


def test_a_size_whose_batch_cannot_be_cut_is_recorded_with_the_reason() -> None:
    found = search_batch(Played(fails={2: "raised", 1: "raised"}))
    assert why(found)[2] == "words of the trial"
    assert chosen(found) == 4


def test_batch_statistics_are_left_alone() -> None:
    reason = "the model has BatchNorm2d, whose statistics depend on the whole batch"
    lab = Played(refused={"microbatch": reason, "merged_microbatches": reason})
    found = search_batch(lab)
    assert chosen(found) == 4
    assert {size for size, _ in lab.held} == {4}
    assert why(found)[8] == f"not applicable: {reason}"


def test_a_plan_that_excludes_a_size_is_a_reason() -> None:
    found = search_batch(Played(clash={2: "`microbatch` and `sequence_packing` exclude each other"}))
    assert why(found)[2] == "not applicable: `microbatch` and `sequence_packing` exclude each other"
    assert why(found)[1] == ""


def test_far_slower_sizes_are_not_tried() -> None:
    lab = Played(batch_size=16, accumulation=1, speeds={8: 90.0, 4: 40.0, 16: 100.0})
    found = search_batch(lab)
    assert why(found)[2] == "not tried: 4 is already more than 2 times slower than 16"
    assert [size for size, _ in lab.held[:-1]] == [16, 8, 4]


def test_side_by_side_only_if_memory_permits() -> None:
    lab = Played(host_limit_bytes=700)
    search_batch(lab)
    assert lab.raced[0][1] is False


def test_the_jobs_own_size_is_measured_even_without_time() -> None:
    lab = Played(speeds={4: 100.0, 8: 150.0})
    found = search_batch(lab, budget=Budget(1.0, monotonic() - 100.0))
    assert chosen(found) == 4
    assert why(found)[8] == f"not tried: {batch_search.LATE}"
    assert len(lab.turned) == batch_search.LEAST_TURNS


def test_with_little_time_the_slowest_sizes_take_no_turns() -> None:
    lab = Played(speeds={1: 110.0, 2: 95.0, 4: 90.0, 8: 130.0, 16: 120.0})
    found = search_batch(lab, budget=Budget(1000.0, monotonic() - 499.0))
    assert lab.raced[0][0] == [1, 2, 4, 8, 16]
    lab = Played(speeds={1: 0.0110, 2: 0.0095, 4: 0.0090, 8: 0.0130, 16: 0.0120})  # an update takes an hour
    found = search_batch(lab, budget=Budget(1000.0, monotonic() - 499.0))
    assert lab.raced[0][0] == [4, 8]
    assert chosen(found) == 8
    assert why(found)[16] == f"fits, but not timed: {batch_search.LATE}"
    assert found.candidates[4].fits


def test_the_json_has_the_documented_fields() -> None:
    found = search_batch(Played(fails={16: "out_of_memory"}, speeds={8: 150.0})).to_dict()
    assert {"batch_size", "optimizer_batch", "chosen", "candidates", "head_room_frac", "limit_bytes"} <= set(found)
    assert (found["batch_size"], found["optimizer_batch"], found["chosen"]) == (4, 16, 8)
    assert found["plan"] == {"merged_microbatches": {"merge": 2}}
    for item in found["candidates"]:
        assert set(item) == {"size", "samples_per_s", "low", "high", "peak_bytes", "fits", "why"}
        assert (item["samples_per_s"] is None) == (not item["fits"])


# The longest samples.


class Lengths(Ragged):
    """Short sequences, and one long one in the middle."""

    batch_size = 3
    accumulation = 2

    def train_data(self) -> Dataset[Any]:
        texts: Any = [torch.ones(1 + index % 3, dtype=torch.long) for index in range(40)]
        texts[17] = torch.ones(20, dtype=torch.long)
        return texts  # type: ignore[no-any-return]


class Sizes(Plain):
    """No length: arrays of bytes instead of tensors."""

    def train_data(self) -> Dataset[Any]:
        samples: Any = [{"name": "x" * (1 + index % 5), "y": torch.zeros(1)} for index in range(30)]
        samples[11]["name"] = "x" * 5000
        return samples  # type: ignore[no-any-return]


def test_the_longest_come_first() -> None:
    found = find_longest(build(Lengths(), device=CPU), most=6, seconds=60.0)
    assert found["indices"] == [17, 2, 5, 8, 11, 14]
    assert found["sizes"] == [20, 3, 3, 3, 3, 3]
    assert (found["unit"], found["scanned"], found["num_samples"]) == ("items", 40, 40)


def test_without_a_length_bytes_decide_in_tensors_and_elsewhere() -> None:
    found = find_longest(build(Sizes(), device=CPU), most=4, seconds=60.0)
    assert found["indices"][0] == 11
    assert found["unit"] == "bytes"
    assert sample_bytes((torch.zeros(100), 3)) > 400
    assert sample_bytes(lambda: None) == 0  # cannot be pickled


def test_scanning_ends_in_time_and_reports_its_extent() -> None:
    found = find_longest(build(Lengths(), device=CPU), most=6, seconds=-1.0)
    assert found["scanned"] == 6
    assert len(set(found["indices"])) == 6


def test_a_plan_may_change_the_micro_batch() -> None:
    live = build(Lengths(), device=CPU)
    assert micro_batch_size(live) == 3
    live.order = lambda _epoch: [list(range(5)), list(range(5, 9))]
    assert micro_batch_size(live) == 5


def test_scanning_does_not_change_random_numbers() -> None:
    live = build(Lengths(), device=CPU)
    state = torch.get_rng_state()
    find_longest(live, most=6, seconds=60.0)
    assert torch.equal(torch.get_rng_state(), state)


def test_data_without_an_index_is_refused() -> None:
    with pytest.raises(JobError, match="iterable dataset"):
        find_longest(build(Streamed(), device=CPU), most=4, seconds=1.0)
    with pytest.raises(JobError, match=re.escape("22 samples, too few for one optimizer batch (batch_size 4 x")):
        find_longest(build(Plain(), device=CPU), most=23, seconds=1.0)


class Watched(Lengths):
    """Records the samples computed at once, whether the model is training, and the state of the optimizer."""

    seen: list[tuple[int, int, bool, int]] = []  # noqa: RUF012  filled by a test

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        self.kept = super().optimizer(model)
        return self.kept

    def collate(self, samples: list[Any]) -> Any:
        return nn.utils.rnn.pad_sequence(samples, batch_first=True)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
        self.seen.append((*batch.shape, model.training, len(self.kept.state)))
        return super().loss(model, batch)


@pytest.mark.parametrize(
    ("plan", "computed"),
    [
        ({}, [(3, 20), (3, 3)]),
        ({"microbatch": {"parts": 2}}, [(2, 20), (1, 20), (2, 3), (1, 3)]),
        ({"merged_microbatches": {"merge": 0}}, [(6, 20)]),
    ],
)
def test_holding_runs_the_longest_the_step_and_a_held_out_batch(
    plan: dict[str, Any], computed: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watched, "seen", [])
    monkeypatch.setattr("hasten.tune.trials.longest_samples.end_this_process_first", lambda: None)
    loop = Loop(build(Watched(), Plan.from_dict(plan, catalogue()), device=CPU))
    worst = hold_longest(loop, indices=[17, 2, 5, 8, 11, 14], updates=2)
    each = len(computed)
    assert [entry[:2] for entry in Watched.seen[: 2 * each]] == computed * 2
    assert {entry[3] for entry in Watched.seen[:each]} == {0}
    assert all(entry[3] > 0 for entry in Watched.seen[each:])  # the second update includes the optimizer's state
    assert all(entry[2] for entry in Watched.seen[: 2 * each])
    held_out, *typical = Watched.seen[2 * each :]
    assert held_out[2] is False
    assert typical  # one update on the run's own data, after the peak was read
    assert all(entry[2] for entry in typical)
    assert 0 < worst["peak_bytes"] < worst["limit_bytes"]
    assert worst["retries"] == 0


# Real processes.

LIMITED = """
class J(Good):
    batch_size = 2
    accumulation = 2
    epochs = 1

    def model(self):
        now = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (now + (900 << 20),) * 2)
        return super().model()

    def train_data(self):
        rows = Rows(64)
        rows.x[37] = 300.0  # its "length", see loss: a rare long sample, beyond the first batches of the run
        return rows

    def length(self, sample):
        return int(sample[0].max())

    def loss(self, model, batch):
        x, y = batch
        mib = len(x) * max(int(x.max()), 1)  # padded to the longest, as sequences are
        kept = torch.ones(mib << 18)
        return super().loss(model, batch) + 0.0 * kept[0]
"""


@pytest.fixture
def limited(tmp_path: Path) -> TrialLab:
    folder = tmp_path / "job"
    folder.mkdir()
    setting = TrialSetting(target=write_job(folder, LIMITED), folder=tmp_path / "trials", hang_s=60.0)
    return TrialLab(setting=setting, base=Plan())


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def trained(target: str) -> tuple[list[float], list[torch.Tensor]]:
    limited = load_job(target)
    unlimited: Any = type(limited).__mro__[1]
    live = build(type("Free", (type(limited),), {"model": unlimited.model})(), device=CPU)
    loop = Loop(live)
    loop.run(2)
    return loop.losses, [p.detach().clone() for p in live.model.parameters()]


@pytest.mark.slow
def test_the_longest_sample_decides_unlike_the_first_batches(limited: TrialLab) -> None:
    size = Size(samples=4, merge=2)
    with Trial(limited.setting, limited.plan(size)) as trial:
        assert len(trial.call("run", updates=3)["losses"]) == 3  # a finder that runs only the first batches sees this
        found = trial.call("longest", seconds=60.0)
    assert found["indices"][0] == 37
    assert (found["sizes"][0], found["scanned"]) == (300, 64)
    limited.indices = tuple(found["indices"])
    with pytest.raises(TrialError) as caught:
        limited.hold(size, 2)
    assert caught.value.kind == "out_of_memory"


@pytest.mark.long
@pytest.mark.slow
def test_a_search_in_real_processes_leaves_the_job_as_it_was(
    limited: TrialLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    folder = tmp_path / "job"
    before, run_before = contents(folder), trained(limited.setting.target)
    for name, value in {"MAX_TURNS": 3, "MAX_RETAKEN": 0, "TURN_S": 0.01, "MAX_CONFIRMED": 3}.items():
        monkeypatch.setattr(batch_search, name, value)
    found = search_batch(limited, head_room_frac=0.0)
    assert why(found) == {1: "", 2: "", 4: "out of memory"}
    assert chosen(found) in (1, 2)
    for item in found.candidates[:2]:
        assert item.fits
        assert 0 < (item.low or 0) <= (item.samples_per_s or 0) <= (item.high or 0)
        assert 0 < (item.peak_bytes or 0) <= found.limit_bytes
    assert contents(folder) == before
    losses, weights = trained(limited.setting.target)
    assert losses == run_before[0]
    assert all(torch.equal(one, other) for one, other in zip(weights, run_before[1], strict=True))


def test_a_job_with_batch_statistics_refuses_every_other_size() -> None:
    from hasten.core.machine import read_machine
    from hasten.profile.probes import job_facts
    from hasten.tune.batch.measure import _refused

    class Normed(Job):
        batch_size = 4
        accumulation = 2

        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

        def train_data(self) -> Dataset[Any]:
            return TensorDataset(torch.zeros(22, 5), torch.zeros(22, 1))

        def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
            return nn.functional.mse_loss(model(batch[0]), batch[1])

    refused = _refused(job_facts(build(Normed(), device=CPU)), read_machine())
    assert set(refused) == {"microbatch", "merged_microbatches"}
    assert all("BatchNorm1d" in words for words in refused.values())


def test_the_size_in_the_base_plan_is_replaced() -> None:
    base = Plan.from_dict({"microbatch": {"parts": 2}, "metric_reading": {"every": 3}}, catalogue())
    lab = TrialLab(setting=TrialSetting(target="x:J", folder=Path("none")), base=base)
    assert lab.plan(None).names == ("metric_reading",)
    assert lab.plan(Size(samples=16, merge=2)).to_dict() == {
        "metric_reading": {"every": 3},
        "merged_microbatches": {"merge": 2},
    }
