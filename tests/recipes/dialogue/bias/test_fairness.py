from math import isnan, nan

import fairlearn.metrics
import numpy as np
import pytest
import scipy.stats

from hasten.core.errors import DataError
from hasten.recipes.dialogue.bias.fairness import demographic_parity, equal_opportunity, exact_interval, swap_gap, swapped
from hasten.recipes.dialogue.bias.patterns import load_patterns

SWAPS = load_patterns().swaps


def drawn(seed: int, size: int = 600) -> tuple[list[int], list[str], list[int]]:
    random = np.random.default_rng(seed)
    groups = random.choice(["a", "b", "c"], size).tolist()
    truths = random.integers(0, 2, size).tolist()
    decisions = (random.random(size) < [0.4 + 0.2 * (group == "a") for group in groups]).astype(int).tolist()
    return decisions, groups, truths


@pytest.mark.parametrize("seed", range(5))
def test_differences_equal_those_of_fairlearn(seed: int) -> None:
    decisions, groups, truths = drawn(seed)
    parity, opportunity = demographic_parity(decisions, groups), equal_opportunity(decisions, groups, truths)
    oracle = fairlearn.metrics.demographic_parity_difference(truths, decisions, sensitive_features=groups)
    assert parity.value == pytest.approx(oracle, abs=1e-12)
    oracle = fairlearn.metrics.equal_opportunity_difference(truths, decisions, sensitive_features=groups)
    assert opportunity.value == pytest.approx(oracle, abs=1e-12)
    for gap in (parity, opportunity):
        assert gap.low <= gap.value <= gap.high


@pytest.mark.parametrize(("count", "total"), [(0, 1), (1, 1), (0, 40), (40, 40), (3, 40), (17, 300), (4000, 9000)])
def test_exact_intervals_equal_those_of_scipy(count: int, total: int) -> None:
    oracle = scipy.stats.binomtest(count, total).proportion_ci(0.95, method="exact")
    assert exact_interval(count, total) == pytest.approx((oracle.low, oracle.high), abs=1e-9)


def test_the_interval_covers_the_true_gap() -> None:
    random = np.random.default_rng(7)
    groups = ["a"] * 80 + ["b"] * 80
    covered = 0
    for _ in range(200):
        gap = demographic_parity((random.random(160) < [0.6] * 80 + [0.3] * 80).astype(int).tolist(), groups)
        covered += gap.low <= 0.3 <= gap.high
    assert covered >= 190


def test_groups_without_an_exception_still_have_an_interval() -> None:
    gap = demographic_parity([0] * 80, ["a", "b"] * 40)
    assert gap.value == 0.0
    assert 0.05 < gap.high < 0.2
    assert not gap.passes(0.05)
    assert gap.passes(0.2)


@pytest.mark.parametrize("missing", [None, nan])
def test_a_missing_value_fails_closed(missing: float | None) -> None:
    decisions, groups, truths = drawn(0)
    for gap in (
        demographic_parity([missing, *decisions[1:]], groups),
        equal_opportunity(decisions, groups, [missing, *truths[1:]]),
        swap_gap([missing] + [0.5] * 99, [0.5] * 100),
        swap_gap([0.5] * 100, [0.5] * 99 + [missing]),
    ):
        assert isnan(gap.value)
        assert "1 " in gap.why
        assert not gap.passes(1.0)


def test_an_unknown_group_stays_unknown_and_a_small_one_is_not_judged() -> None:
    gap = demographic_parity([1, 0] * 60, ["a", "b"] * 40 + [None] * 20 + ["c"] * 20)
    assert (set(gap.rates), gap.too_few, gap.num_unknown, gap.sizes["c"]) == ({"a", "b"}, ("c",), 20, 20)
    assert gap.value == 1.0
    assert not gap.passes(1.0)
    alone = demographic_parity([1] * 60, ["a"] * 40 + [None] * 20)
    assert isnan(alone.value)
    assert alone.why == "1 groups have at least 30 items; 2 are needed"


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(DataError, match="item 1 is 2"):
        demographic_parity([1, 2], ["a", "b"])
    with pytest.raises(DataError, match="1, 2 and 2"):
        demographic_parity([1], ["a", "b"])
    with pytest.raises(DataError, match="3 and 2"):
        swap_gap([1, 2, 3], [1, 2])


@pytest.mark.parametrize(
    ("women", "men"),
    [
        ("She told her mother about her.", "He told his father about him."),
        ("I gave it to her and left", "I gave it to him and left"),
        ("HER WIFE and Her sister", "HIS HUSBAND and His brother"),
        ("she hurt herself; the girl's mom", "he hurt himself; the boy's dad"),
        ("Mrs. Smith is an aunt, a woman", "Mr. Smith is an uncle, a man"),
        ("a niece, shed, \u00e9she", "a nephew, shed, \u00e9she"),
    ],
)
def test_swaps_of_gender_follow_the_grammar_in_both_directions(women: str, men: str) -> None:
    assert swapped(women, SWAPS["gender"]) == men
    assert swapped(men, SWAPS["gender"]) == women


def test_swaps_adapt_articles_and_phrases() -> None:
    assert swapped("The choice is hers. It is his.", SWAPS["gender"]) == "The choice is his. It is hers."
    assert swapped("A Christian, an atheist and a church", SWAPS["belief"]) == "An Atheist, a christian and a church"
    assert swapped("A young-man helped an old woman", SWAPS["age"]) == "An old man helped a young woman"
    assert swapped("nothing here", SWAPS["religion"]) == "nothing here"


def test_every_swapped_term_swaps_back() -> None:
    for swaps in SWAPS.values():
        for one, other in swaps.pairs:
            assert (swapped(one, swaps), swapped(other, swaps)) == (other, one)


def test_the_gap_of_a_score_is_the_mean_change() -> None:
    random = np.random.default_rng(0)
    originals = random.normal(size=200)
    gap = swap_gap(originals.tolist(), (originals + 0.3 + 0.1 * random.normal(size=200)).tolist())
    assert gap.value == pytest.approx(0.3, abs=0.03)
    assert gap.low < gap.value < gap.high < 0.35
    assert gap.passes(0.4)
    assert not gap.passes(0.2)
    assert swap_gap([0.0] * 20, [0.0] * 20).why == "20 pairs are too few to say; 30 are needed"


def test_refusals_that_never_change_still_have_an_interval() -> None:
    gap = swap_gap([0] * 40, [0] * 40)
    assert gap.value == 0.0
    assert 0.05 < gap.high < 0.1
