"""The search: order, refusals and outcomes are pure decisions, so these tests use an invented screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from hasten.core.card import Bottleneck, Card, Numerics
from hasten.core.errors import TrialError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.plan import Plan
from hasten.core.seams import Seam, Undo
from hasten.core.stats import judge, paired_interval
from hasten.optimizations import catalogue
from hasten.profile.diagnosis import Diagnosis
from hasten.report.evidence import Candidate, NumericsResult
from hasten.report.words import outcome_words
from hasten.tune.budget import Budget, Costs
from hasten.tune.proof.compare import Comparison
from hasten.tune.proof.numerics import GateVerdict
from hasten.tune.search import confirm as module
from hasten.tune.search.candidate import NOT_TRIED
from hasten.tune.search.screening import Screening
from hasten.tune.search.search import Search
from hasten.tune.search.state import SearchConfig, SearchState
from hasten.tune.trials.pair import Design
from hasten.tune.trials.samples import Sample
from tests.optimizations.contract import GIB, facts

FLOOR = 0.03


def technique(
    name: str,
    *,
    gain: float = 0.5,
    relieves: Bottleneck = Bottleneck.COMPUTE,
    refuses: str = "",
    **card: Any,
) -> type[Optimization]:
    """Invent a technique that could save `gain` of the step."""

    @dataclass(frozen=True, kw_only=True)
    class Invented(Optimization):
        @classmethod
        def fit(cls, _facts: Facts) -> Fit:
            return Fit.no(refuses) if refuses else Fit.yes(max_gain_frac=gain, settings=[cls()])

        def apply(self, live: LiveJob) -> Undo:
            raise AssertionError("nothing is applied here")

    Invented.card = Card(
        name=name, summary="invented", relieves=relieves, seam=Seam.MODEL, source="-",
        **{"numerics": Numerics.EXACT, **card},
    )  # fmt: skip
    return Invented


def sized(name: str, sizes: tuple[int, ...] = (1, 2, 3, 4), **card: Any) -> type[Optimization]:
    """Invent a technique with several settings."""

    @dataclass(frozen=True, kw_only=True)
    class Sized(technique(name, **card)):  # type: ignore[misc]
        size: int = 1

        @classmethod
        def fit(cls, _facts: Facts) -> Fit:
            return Fit.yes(max_gain_frac=0.5, settings=[cls(size=size) for size in sizes])

    return Sized


def measured(ratio: float, noise: float = 0.001, pairs: int = 5) -> Comparison:
    """Return a comparison in which B is `value` times as fast, judged with the noise floor."""
    found = Comparison(kind="screening")
    for pair in range(pairs):
        for arm, seconds in (("A", 1.0), ("B", (1 + (noise if pair % 2 else -noise)) / ratio)):
            taken = Sample(
                arm=arm, pair=pair, seconds_per_item=seconds, seconds=seconds, items=1, updates=1, cpu_seconds=0.0,
                foreign_cpu_frac=0.0, major_faults=0, minor_faults=0, spoilt=False,
            )  # fmt: skip
            found.samples.append(taken)
    found.interval = paired_interval(found.times("A"), found.times("B"), 0.95)
    found.verdict = judge(found.interval, FLOOR)
    return found


PASSED = GateVerdict(numerics=Numerics.EXACT, verdict="passed", why="bit-equal")
FAILED = GateVerdict(numerics=Numerics.EXACT, verdict="failed", why="losses differ from update 2 on")


@dataclass(kw_only=True)
class FakeScreen:
    """Answers with invented screenings: a ratio, a `Screening`, or an error, by the name that was added or removed."""

    answers: dict[str, Any] = field(default_factory=dict)
    without: dict[str, Any] = field(default_factory=dict)
    plan: Plan = field(default_factory=Plan)
    floor_frac: float = FLOOR
    filling_s: float = 0.0
    tried: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    profiles: int = 0
    on_screen: Callable[[], None] = lambda: None
    again: Exception | None = None

    def __post_init__(self) -> None:
        trial = SimpleNamespace(freeze=lambda: None, thaw=lambda: None)
        self.base = SimpleNamespace(trial=trial)
        self.challenger: Any = None
        self.setting: Any = None
        self.processes = SimpleNamespace(most_updates=None)

    def screen(
        self, candidate: Optimization | None, plan: Plan, updates: int, *, partner: Optimization | None = None
    ) -> Screening:
        if candidate is not None and partner is not None:
            both = f"{candidate.card.name}+{partner.card.name}"
            answer: Any = self.answers.get(both, 1.0)
            self.tried.append(both)
        elif candidate is None:
            (name,) = set(self.plan.names) - set(plan.names)
            answer = self.without.get(name, 0.5)
            self.tried.append(f"without {name}")
        else:
            words = " ".join([candidate.card.name, *(str(value) for value in candidate.settings().values())])
            answer = self.answers.get(words, self.answers.get(candidate.card.name, 1.0))
            self.tried.append(words)
        self.challenger = SimpleNamespace(trial=self.base.trial, plan=plan)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Screening):
            return answer
        evidence = [{"name": "seen", "passed": True, "seen": "1"}]
        peaks, losses = {"A": 100, "B": 50}, {"A": [1.0, 2.0], "B": [1.0, 2.0]}
        return Screening(
            comparison=measured(answer), gate=PASSED, evidence=evidence, setup_s=3.0, peak_bytes=peaks, losses=losses
        )

    def say(self, words: str) -> None:
        self.said.append(words)

    def freeze(self) -> None:
        """Do nothing."""

    def challenges(self, plan: Plan) -> bool:
        return bool(self.challenger.plan == plan)

    def stand_by(self, plan: Plan) -> None:
        self.tried.append(f"started {plan.to_dict()}")
        if isinstance(self.again, Exception):
            raise self.again
        self.challenger = SimpleNamespace(trial=self.base.trial, plan=plan)

    def promote(self) -> None:
        self.plan, self.challenger = self.challenger.plan, None

    def profile(self, *, slice_s: float, quick: bool) -> dict[str, Any]:
        self.profiles += 1
        found = facts()
        sent = {name: getattr(found, name) for name in found.__dataclass_fields__ if name not in ("machine", "job")}
        phases = {"forward": 0.5, "backward": 0.5}
        said = {"name": "compute", "share": 1.0, "words": "as measured again"}
        return {"profile": {"job": dict(vars(found.job)), "phases": phases, "bottleneck": said}, "facts": sent}


def make(
    kinds: list[type[Optimization]],
    screen: FakeScreen,
    *,
    bottleneck: Bottleneck = Bottleneck.COMPUTE,
    seconds: float = 1e6,
    candidates: list[Candidate] | None = None,
    on: Facts | None = None,
    **wanted: Any,
) -> Search:
    fake: Any = screen
    config = {
        "catalogue": {kind.card.name: kind for kind in kinds},
        "costs": Costs(start_s=1.0, base_update_s=0.01, validation_s=0.0),
        "budget": Budget(seconds, monotonic()),
        "reserve_s": lambda *_: 0.0,
        "updates": 10,
        "design": Design(updates=10),
        "floor_frac": FLOOR,
    }
    state = SearchState(
        config=SearchConfig(**{**config, **wanted}),
        facts=on or facts(),
        diagnosis=Diagnosis(name=bottleneck, share=0.5, words="-"),
        candidates=candidates if candidates is not None else [],
    )
    return Search(state, fake, save=lambda: None)


def test_the_search_reports_the_candidate_and_the_best_speed_so_far() -> None:
    screen = FakeScreen(answers={"a": 1.5, "b": 0.9})
    make([technique("a", prior=0.9), technique("b", prior=0.1)], screen).run()
    trials = [words for words in screen.said if words.startswith("trying")]
    assert trials == [
        "trying a (candidate 1 of 2, best so far 1.00x)",
        "trying b (candidate 2 of 2, best so far 1.50x)",
    ]


def configure(search: Search, **changes: Any) -> None:
    """Change the configuration of the search."""
    search.state.config = replace(search.state.config, **changes)


def outcomes(search: Search) -> dict[str, str]:
    return {candidate.name: candidate.outcome for candidate in search.state.candidates}


def reason(search: Search, name: str) -> str:
    return next(candidate.reason for candidate in search.state.candidates if candidate.name == name)


def test_the_highest_ceiling_is_tried_first_and_the_bottleneck_before_that() -> None:
    kinds = [
        technique("small", gain=0.2),
        technique("large", gain=0.6),
        technique("middle", gain=0.5, relieves=Bottleneck.INPUT),
        technique("unlikely", gain=0.6, prior=0.1),
    ]
    screen = FakeScreen()
    make(kinds, screen, bottleneck=Bottleneck.COMPUTE).run()
    assert screen.tried == ["large", "middle", "small", "unlikely"]
    screen = FakeScreen()
    make(kinds, screen, bottleneck=Bottleneck.INPUT).run()
    assert screen.tried[:2] == ["middle", "large"]


def test_a_faster_candidate_is_applied_and_the_bottleneck_measured_again() -> None:
    screen = FakeScreen(answers={"good": 1.5})
    search = make([technique("good"), technique("idle", gain=0.3)], screen)
    search.run()
    assert outcomes(search) == {"good": "applied", "idle": "refused"}
    assert screen.plan.names == ("good",)
    assert screen.profiles == 1
    assert search.state.phases == {"forward": 0.5, "backward": 0.5}
    candidate = search.state.candidates[0]
    assert candidate.comparison is not None
    assert candidate.comparison.verdict == "faster"
    assert candidate.predicted_max_gain == pytest.approx(2.0)
    assert candidate.setup_seconds == 3.0
    assert candidate.break_even_updates is not None
    assert candidate.numerics == NumericsResult(
        kind=Numerics.EXACT, verdict="passed", why="bit-equal", baseline_losses=(1.0, 2.0), candidate_losses=(1.0, 2.0)
    )
    assert candidate.memory_ratio == 0.5


@pytest.mark.parametrize(("together", "outcome"), [(1.5, "applied"), (1.0, "refused"), (0.8, "refused")])
def test_techniques_that_pay_together_are_tried_together(together: float, outcome: str) -> None:
    screen = FakeScreen(answers={"layout+half": together})
    search = make([technique("half"), technique("layout", gain=0.3, pays_with=("half",)), technique("other")], screen)
    search.run()
    assert screen.tried == ["half", "other", "layout", "layout+half"]
    assert outcomes(search) == {"half": outcome, "other": "refused", "layout": outcome}
    assert screen.plan.names == (("layout", "half") if outcome == "applied" else ())
    for name, partner in (("half", "layout"), ("layout", "half")):
        assert f"together with {partner}" in reason(search, name)


def test_a_pair_is_split_afterwards() -> None:
    screen = FakeScreen(answers={"layout+half": 1.5}, without={"layout": 1.0, "half": 0.7})
    search = make([technique("half"), technique("layout", gain=0.3, pays_with=("half",))], screen)
    search.run()
    search.prune()
    assert sorted(screen.tried[-2:]) == ["without half", "without layout"]
    assert outcomes(search) == {"half": "applied", "layout": "pruned"}
    assert screen.plan.names == ("half",)


@pytest.mark.parametrize("alone", [1.5, TrialError("It crashed.", kind="killed")], ids=["paid", "failed"])
def test_techniques_that_paid_or_failed_alone_are_not_paired(alone: Any) -> None:
    screen = FakeScreen(answers={"half": alone})
    make([technique("half"), technique("layout", gain=0.3, pays_with=("half",))], screen).run()
    assert "layout+half" not in screen.tried


def test_a_ceiling_below_the_noise_floor_is_refused_without_a_run() -> None:
    screen = FakeScreen()
    search = make([technique("tiny", gain=0.02)], screen)
    search.run()
    assert screen.tried == []
    assert outcomes(search) == {"tiny": "refused"}
    assert "at most 1.02x" in reason(search, "tiny")


def test_a_technique_that_does_not_fit_gives_its_own_reason() -> None:
    search = make([technique("alien", refuses="there is no such kernel here")], FakeScreen())
    search.run()
    assert outcomes(search) == {"alien": "refused"}
    assert outcome_words(search.state.candidates[0]) == "not applicable"
    assert reason(search, "alien") == "there is no such kernel here"
    assert search.state.candidates[0].predicted_max_gain is None


def test_a_memory_technique_is_tried_only_where_memory_is_short() -> None:
    kind = technique("thrift", gain=0.0, memory_technique=True)
    screen = FakeScreen(answers={"thrift": 0.8})
    search = make([kind], screen)
    search.run()
    assert (screen.tried, outcomes(search)) == ([], {"thrift": "refused"})
    assert "memory is not short: peak 1.0 GiB of 8.0 GiB" in reason(search, "thrift")
    short = FakeScreen(answers={"thrift": 0.8})
    search = make([kind], short, on=facts(peak_memory_bytes=7 * GIB))
    search.run()
    assert short.tried == ["thrift"]
    assert "saves memory" in reason(search, "thrift")


def test_a_failed_trial_is_recorded_and_the_search_continues() -> None:
    error = TrialError("The trial process was ended by SIGKILL.", kind="out_of_memory")
    screen = FakeScreen(answers={"greedy": error, "good": 1.5})
    search = make([technique("greedy", gain=0.8), technique("good")], screen)
    search.run()
    assert outcomes(search) == {"greedy": "failed", "good": "applied"}
    assert reason(search, "greedy").startswith("out of memory: The trial process was ended")
    assert search.state.candidates[0].comparison is None


@pytest.mark.parametrize(
    ("screening", "words"),
    [
        (Screening(comparison=measured(3.0), gate=PASSED, evidence=[]), "no visible effect (no check)"),
        (
            Screening(comparison=measured(3.0), gate=PASSED, evidence=[{"name": "fused op", "passed": False, "seen": "0"}]),
            "no visible effect (fused op: 0)",
        ),
        (
            Screening(comparison=measured(3.0), gate=FAILED, evidence=[{"name": "x", "passed": True, "seen": "1"}]),
            "losses differ from update 2 on",
        ),
        (
            Screening(comparison=measured(3.0), gate=None, evidence=[{"name": "x", "passed": True, "seen": "1"}]),
            "nothing was captured",
        ),
    ],
    ids=["no evidence", "evidence missing", "gate", "no losses"],
)
def test_speed_without_proof_is_refused(screening: Any, words: Any) -> None:
    screen = FakeScreen(answers={"magic": screening})
    search = make([technique("magic")], screen)
    search.run()
    assert outcomes(search) == {"magic": "refused"}
    assert [outcome_words(item) for item in search.state.candidates] == ["rejected"]
    assert words in reason(search, "magic")
    assert screen.plan.names == ()


@pytest.mark.parametrize(
    ("comparison", "outcome", "shown", "words"),
    [
        (measured(0.7), "refused", "slower", "slower: "),
        (measured(1.0), "refused", "no gain", "no gain: "),
        (measured(1.1, noise=0.3), "undecided", "undecided", "no gain was shown"),
        (Comparison(why="only 1 clean turns"), "undecided", "undecided", "only 1 clean turns"),
    ],
)
def test_every_outcome_of_a_screening_has_its_reason(comparison: Any, outcome: Any, shown: Any, words: Any) -> None:
    checks = [{"name": "x", "passed": True, "seen": "1"}]
    screening = Screening(comparison=comparison, gate=PASSED, evidence=checks)
    search = make([technique("one")], FakeScreen(answers={"one": screening}))
    search.run()
    assert outcomes(search) == {"one": outcome}
    assert [outcome_words(item) for item in search.state.candidates] == [shown]
    assert words in reason(search, "one")


@pytest.mark.parametrize(("fresh", "outcome"), [(1.06, "applied"), (1.0, "refused")])
def test_a_small_gain_is_left_to_fresh_processes(monkeypatch: pytest.MonkeyPatch, fresh: Any, outcome: Any) -> None:
    asked: list[tuple[Any, Any]] = []

    def compared(_setting: Any, base: Plan, candidate: Plan, _design: Design) -> Comparison:
        asked.append((base.names, candidate.names))
        return measured(fresh)

    monkeypatch.setattr(module, "compare", compared)
    search = make([technique("slight")], FakeScreen(answers={"slight": 1.05}))
    search.run()
    assert asked == [((), ("slight",))]
    assert outcomes(search) == {"slight": outcome}


def test_fresh_processes_count_at_most_the_steps_of_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def compared(_setting: Any, _base: Plan, _candidate: Plan, design: Design) -> Comparison:
        asked.append(design.updates)
        return measured(1.06)

    monkeypatch.setattr(module, "compare", compared)
    screen = FakeScreen(answers={"slight": 1.05})
    screen.processes.most_updates = 7
    make([technique("slight")], screen).run()
    assert asked == [7]


@pytest.mark.parametrize(
    ("longer", "outcome"), [(measured(1.06), "applied"), (measured(1.0), "refused"), (measured(1.06, 0.2), "undecided")]
)
def test_open_candidates_are_measured_longer_after_all_others(
    monkeypatch: pytest.MonkeyPatch, longer: Comparison, outcome: str
) -> None:
    asked: list[tuple[Any, int]] = []

    def compared(_setting: Any, _base: Plan, candidate: Plan, design: Design) -> Comparison:
        asked.append((candidate.names, design.updates))
        found = measured(1.06, 0.2) if len(asked) == 1 else longer
        found.kind = "confirmation"
        return found

    monkeypatch.setattr(module, "compare", compared)
    screen = FakeScreen(answers={"slight": 1.05, "large": 2.0})
    search = make([technique("slight", prior=1.0), technique("large", prior=0.1)], screen)
    search.run()
    (first, before), (second, after) = asked
    assert (first, second) == (("slight",), ("large", "slight"))
    assert after > 1.5 * before
    assert outcomes(search) == {"slight": outcome, "large": "applied"}
    assert ("slight" in screen.plan.names) == (outcome == "applied")
    assert "fresh processes leave it open" in reason(search, "slight")
    assert "in a longer measurement: " in reason(search, "slight")
    assert search.state.newest == ("slight" if outcome == "applied" else "large")


@pytest.mark.parametrize("seen", [measured(1.0, 0.2, pairs=4), measured(0.9, 0.3)])
def test_candidates_without_gain_are_not_measured_again(monkeypatch: pytest.MonkeyPatch, seen: Comparison) -> None:
    asked: list[Plan] = []

    def compared(_setting: Any, _base: Plan, candidate: Plan, _design: Design) -> Comparison:
        asked.append(candidate)
        seen.kind = "confirmation"
        return seen

    monkeypatch.setattr(module, "compare", compared)
    search = make([technique("slight")], FakeScreen(answers={"slight": 1.05}))
    search.run()
    assert len(asked) == 1
    assert outcomes(search) == {"slight": "undecided"}


def test_a_small_gain_that_fails_in_fresh_processes_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(*_: Any) -> Comparison:
        raise TrialError("it hung", kind="hung")

    monkeypatch.setattr(module, "compare", compared)
    search = make([technique("slight")], FakeScreen(answers={"slight": 1.05}))
    search.run()
    assert outcomes(search) == {"slight": "failed"}
    assert reason(search, "slight") == "hung: it hung"


def test_without_time_for_fresh_processes_a_small_gain_stays_undecided() -> None:
    screen = FakeScreen(answers={"slight": 1.05})
    reserve = lambda *_: 1e9 if screen.tried else 0.0  # noqa: E731  the screening itself still had enough time
    search = make([technique("slight")], screen, reserve_s=reserve)
    search.run()
    assert outcomes(search) == {"slight": "undecided"}
    assert "too small to trust" in reason(search, "slight")


def test_a_loss_that_breaks_fails_the_gate_and_is_not_a_crash() -> None:
    error = TrialError("The loss became inf at update 5.", kind="nan")
    search = make([technique("breaks")], FakeScreen(answers={"breaks": error}))
    search.run()
    assert outcomes(search) == {"breaks": "refused"}
    assert "numerics gate" in reason(search, "breaks")
    assert search.state.candidates[0].numerics is not None
    assert search.state.candidates[0].numerics.verdict == "failed"


def test_candidates_beyond_the_budget_are_reported_and_not_run() -> None:
    screen = FakeScreen(answers={"good": 1.5, "dear": 9.0})
    search = make([technique("dear", gain=0.9, setup_s=1e7), technique("good")], screen)
    search.run()
    assert screen.tried == ["good"]
    assert outcomes(search) == {"dear": "undecided", "good": "applied"}
    assert reason(search, "dear").startswith(NOT_TRIED)
    assert [outcome_words(item) for item in search.state.candidates] == ["not tried", "applied"]
    assert [message for message in screen.said if "dear" in message] == ["not tried for lack of time: dear"]
    assert any(message.startswith("applied: good: faster: 1.50x") for message in screen.said)


def test_a_conflict_with_the_plan_is_refused_with_both_names() -> None:
    kinds = [technique("first", gain=0.8, conflicts=("second",)), technique("second")]
    search = make(kinds, FakeScreen(answers={"first": 2.0, "second": 2.0}))
    search.run()
    assert outcomes(search) == {"first": "applied", "second": "refused"}
    assert "`first` and `second` exclude each other" in reason(search, "second")


def test_pruning_removes_what_no_longer_pays_and_keeps_the_rest() -> None:
    screen = FakeScreen(answers={"a": 1.3, "b": 1.5, "c": 1.4}, without={"a": 1.0, "b": 0.6})
    search = make([technique("a", gain=0.8), technique("b", gain=0.7), technique("c", gain=0.6)], screen)
    search.run()
    screen.tried.clear()
    search.prune()
    assert screen.tried == ["without a", "without b"]  # smallest gain first; the last applied candidate was just measured
    assert outcomes(search) == {"a": "pruned", "b": "applied", "c": "applied"}
    assert screen.plan.names == ("b", "c")
    assert "no longer pays" in reason(search, "a")
    assert "without it the job runs at 0.60x" in reason(search, "b")


def test_pruning_survives_a_trial_that_fails_and_leaves_a_single_rung_alone() -> None:
    error = TrialError("gone", kind="killed")
    screen = FakeScreen(answers={"a": 1.3, "b": 1.5}, without={"a": error})
    search = make([technique("a", gain=0.8), technique("b", gain=0.7)], screen)
    search.run()
    search.prune()
    assert outcomes(search) == {"a": "applied", "b": "applied"}
    assert "could not be measured: gone" in reason(search, "a")
    single = FakeScreen(answers={"a": 1.3})
    search = make([technique("a")], single)
    search.run()
    search.prune()
    assert single.tried == ["a"]


def test_pruning_is_skipped_when_the_budget_is_spent() -> None:
    screen = FakeScreen(answers={"a": 1.3, "b": 1.5})
    search = make([technique("a", gain=0.8), technique("b", gain=0.7)], screen)
    search.run()
    screen.tried.clear()
    configure(search, budget=Budget(1.0, monotonic() - 100.0))
    search.prune()
    assert screen.tried == []
    assert outcomes(search) == {"a": "applied", "b": "applied"}


def test_settled_candidates_of_an_earlier_session_are_not_tried_again() -> None:
    old = Candidate(
        name="slow", settings={}, outcome="refused", reason="slower: 0.70x", comparison=measured(0.7).to_evidence()
    )
    screen = FakeScreen()
    search = make([technique("slow"), technique("new")], screen, candidates=[old])
    search.run()
    assert screen.tried == ["new"]
    assert [candidate.name for candidate in search.state.candidates] == ["slow", "new"]


@pytest.mark.parametrize("ratio", [1.5, 1.0, 0.5])
@pytest.mark.parametrize("seconds", [1e6, 0.0])
def test_every_technique_of_the_catalogue_has_a_candidate(ratio: Any, seconds: Any) -> None:
    kinds = catalogue()
    screen = FakeScreen(answers=dict.fromkeys(kinds, ratio))
    search = make(list(kinds.values()), screen, seconds=seconds)
    search.run()
    search.prune()
    assert {candidate.name for candidate in search.state.candidates} == set(kinds)
    assert all(candidate.reason for candidate in search.state.candidates)
    assert {candidate.name for candidate in search.state.candidates if candidate.outcome == "applied"} == set(
        screen.plan.names
    )
    if not seconds:
        assert screen.tried == []


def kept_sizes(search: Search) -> dict[int, str]:
    """Return the outcomes of a technique's settings."""
    return {candidate.settings["size"]: candidate.outcome for candidate in search.state.candidates}


def test_after_a_faster_setting_the_fastest_of_several_is_kept() -> None:
    screen = FakeScreen(answers={"knob 1": 1.0, "knob 2": 1.3, "knob 3": 1.6, "knob 4": 1.4})
    search = make([sized("knob", (1, 2, 3, 4, 5))], screen)
    search.run()
    assert screen.tried == ["knob 1", "knob 2", "knob 3", "knob 4", "started {'knob': {'size': 3}}"]
    assert kept_sizes(search) == {1: "refused", 3: "applied", 4: "refused", 2: "refused"}
    assert screen.plan.to_dict() == {"knob": {"size": 3}}
    assert "size=3 is faster still: 1.60x in turns" in next(
        r.reason for r in search.state.candidates if r.settings["size"] == 4
    )
    assert search.state.speed == pytest.approx(1.6, rel=0.01)


def test_of_settings_that_are_as_fast_the_simplest_is_kept() -> None:
    screen = FakeScreen(answers={"knob 2": 1.62, "knob 1": 1.6, "knob 3": 1.5})
    search = make([sized("knob", (2, 1, 3))], screen)
    search.run()
    assert kept_sizes(search) == {1: "applied", 2: "refused", 3: "refused"}
    reasons = {candidate.settings["size"]: candidate.reason for candidate in search.state.candidates}
    assert "size=1 is simpler, and as fast: 1.60x in turns" in reasons[2]
    assert "size=1 is faster still" in reasons[3]


def test_the_last_screened_setting_is_not_restarted() -> None:
    screen = FakeScreen(answers={"knob 1": 1.3, "knob 2": 1.6})
    search = make([sized("knob", (1, 2))], screen)
    search.run()
    assert screen.tried == ["knob 1", "knob 2"]
    assert kept_sizes(search) == {2: "applied", 1: "refused"}


def test_a_setting_left_open_by_fresh_processes_yields_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = {1: 1.06, 2: 1.0}
    monkeypatch.setattr(module, "compare", lambda _s, _base, plan, _d: measured(fresh[plan.to_dict()["knob"]["size"]]))
    screen = FakeScreen(answers={"knob 1": 1.06, "knob 2": 1.07})
    search = make([sized("knob", (1, 2))], screen)
    search.run()
    assert kept_sizes(search) == {2: "refused", 1: "applied"}
    assert screen.plan.to_dict() == {"knob": {"size": 1}}


def test_other_settings_wait_if_there_is_no_time() -> None:
    screen = FakeScreen(answers={"knob": 1.5})
    search = make([sized("knob")], screen, seconds=1e6)
    screening_s = search.state.config.costs.screening_s(5, search.state.turn_updates, search.state.update_s)
    answers = iter([2 * screening_s, screening_s / 2])
    configure(search, budget=type("Left", (), {"left": property(lambda _: next(answers, 0.0))})())
    search.run()
    assert screen.tried == ["knob 1"]
    assert kept_sizes(search) == {1: "applied"}


def test_a_setting_that_cannot_be_restarted_fails_and_the_next_is_kept() -> None:
    error = TrialError("It crashed.", kind="killed")
    screen = FakeScreen(answers={"knob 1": 1.6, "knob 2": 1.3}, again=error)
    search = make([sized("knob", (1, 2))], screen)
    search.run()
    assert kept_sizes(search) == {1: "failed", 2: "applied"}
    assert "when it was restarted: It crashed." in search.state.candidates[0].reason


def test_for_memory_the_first_sufficient_setting_is_kept() -> None:
    screen = FakeScreen(answers={"knob": 0.9})
    search = make([sized("knob", gain=0.0, memory_technique=True)], screen, on=facts(peak_memory_bytes=7 * GIB))
    search.run()
    assert screen.tried == ["knob 1"]
