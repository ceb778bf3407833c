"""Measure whether decisions and scores differ between demographic groups, with intervals, failing closed.

A gap is the largest difference between two groups, as in fairlearn. Its interval holds for all pairs of groups at once. Each
group has an exact interval (Clopper and Pearson 1934) at a level shared among the groups (Bonferroni), and the gap lies
between the smallest and the largest difference that these allow. It is wider than a bootstrap interval, but never empty.

Counterfactual swaps ask more: does a score (sentiment, refusal) change if only the group named in a text changes?
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite, nan

import numpy as np

from hasten.core.errors import DataError
from hasten.recipes.dialogue.bias.patterns import Swaps
from hasten.recipes.needed import needed

MIN_GROUP = 30
"""Smallest group, and smallest number of pairs, that is judged."""
_DRAWS = 2000
# Words after which "her" is an object and "his" or "hers" stands alone; before any other word they belong to a noun.
_NO_NOUN = frozenset(
    re.findall(
        r"\w+",
        """
        a about after again all although always am an and any are as at away back be because been before being but by
        can could did do does down during either even every for from had has have how if in into is it its just like may
        might more must my never no nor not now of off on once only or our out over should since so some soon than that
        the their them then there these they this those though through to today together tomorrow tonight too under
        until up was we were what when where whether which while who why will with without would yesterday yet you your
        i me him he she us
        """,
    )
)


@dataclass(frozen=True)
class Gap:
    """A difference between groups, with its interval.

    Attributes:
        value: The difference; NaN if it is unknown.
        low: Lower end of the interval; NaN as above.
        high: Upper end of the interval; NaN as above.
        rates: Group -> rate or mean score, for the groups that were judged.
        sizes: Group -> number of items that count for it.
        too_few: Groups below the minimum size. They were not judged.
        num_unknown: Number of items whose group is unknown. They were not judged.
        why: Why there is no value; empty if there is one.
    """

    value: float
    low: float
    high: float
    rates: Mapping[str, float] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    too_few: tuple[str, ...] = ()
    num_unknown: int = 0
    why: str = ""

    def passes(self, most: float) -> bool:
        """Tell whether the gap is proved to be at most `most`. It fails without a value, or if a group is too small."""
        known = isfinite(self.value) and isfinite(self.low) and isfinite(self.high) and not self.too_few
        return known and max(abs(self.low), abs(self.high)) <= most


def demographic_parity(
    decisions: Sequence[float | None], groups: Sequence[str | None], *, min_group: int = MIN_GROUP, confidence: float = 0.95
) -> Gap:
    """Return the demographic parity difference: the largest difference between groups in the share of decisions that are 1.

    Args:
        decisions: 0 or 1 for each item; a missing one (None, NaN) gives a gap without a value.
        groups: Group of each item; None is unknown.
        min_group: Smallest group that is judged.
        confidence: Of the interval, for all pairs of groups together.

    Raises:
        DataError: Lengths differ, or a decision is neither 0, 1 nor missing.
    """
    return _rate_gap(decisions, groups, [1.0] * len(groups), min_group, confidence)


def equal_opportunity(
    decisions: Sequence[float | None],
    groups: Sequence[str | None],
    truths: Sequence[float | None],
    *,
    min_group: int = MIN_GROUP,
    confidence: float = 0.95,
) -> Gap:
    """Return the equal opportunity difference: that of `demographic_parity` among the items whose truth is 1.

    Args:
        decisions: As in `demographic_parity`.
        groups: As in `demographic_parity`.
        truths: 0 or 1 for each item: whether the decision should be 1. A missing one gives a gap without a value.
        min_group: Smallest number of items of a group with truth 1.
        confidence: As in `demographic_parity`.

    Raises:
        DataError: As in `demographic_parity`, also for truths.
    """
    return _rate_gap(decisions, groups, truths, min_group, confidence)


def _rate_gap(
    decisions: Sequence[float | None],
    groups: Sequence[str | None],
    truths: Sequence[float | None],
    min_group: int,
    confidence: float,
) -> Gap:
    if not len(decisions) == len(groups) == len(truths):
        raise DataError(
            f"each item needs a decision, a group and a truth: there are {len(decisions)}, {len(groups)} and {len(truths)}."
        )
    missing = 0
    for name, values in (("decision", decisions), ("truth", truths)):
        for number, value in enumerate(values):
            if value is None or value != value:  # noqa: PLR0124 - NaN
                missing += 1
            elif value not in {0, 1}:
                raise DataError(f"the {name} of item {number} is {value!r}. Expected: 0 or 1.")
    num_unknown = sum(group is None for group in groups)
    if missing:
        why = f"{missing} decisions or truths are missing or NaN"
        return Gap(nan, nan, nan, num_unknown=num_unknown, why=why)
    taken: dict[str, list[int]] = {group: [] for group in sorted({group for group in groups if group is not None})}
    for decision, group, truth in zip(decisions, groups, truths, strict=True):
        if group is not None and truth == 1:
            taken[group].append(int(decision or 0))
    sizes = {group: len(ones) for group, ones in taken.items()}
    too_few = tuple(group for group, size in sizes.items() if size < max(1, min_group))
    rates = {group: sum(ones) / len(ones) for group, ones in taken.items() if group not in too_few}
    if len(rates) < 2:
        why = f"{len(rates)} groups have at least {min_group} items; 2 are needed"
        return Gap(nan, nan, nan, rates, sizes, too_few, num_unknown, why)
    level = 1 - (1 - confidence) / len(rates)
    ends = [exact_interval(sum(taken[group]), sizes[group], level) for group in rates]
    low = max(0.0, max(low for low, _ in ends) - min(high for _, high in ends))
    high = max(one[1] - other[0] for n, one in enumerate(ends) for m, other in enumerate(ends) if n != m)
    return Gap(max(rates.values()) - min(rates.values()), low, high, rates, sizes, too_few, num_unknown)


def exact_interval(count: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact two-sided interval of a share (Clopper and Pearson 1934), for `total` of at least 1."""
    beta, tail = needed("scipy.stats", extra="dialogue").beta, (1 - confidence) / 2
    low = 0.0 if count == 0 else float(beta.ppf(tail, count, total - count + 1))
    return low, 1.0 if count == total else float(beta.ppf(1 - tail, count + 1, total - count))


def swapped(text: str, swaps: Swaps) -> str:
    """Return a text with the terms of two groups exchanged, in both directions; the same text if it has none.

    Case is kept, and "a" or "an" before a new term is adapted. "her" and "his" become what the next word asks for: a
    possessive before a noun, an object or "hers" elsewhere. Any next word outside a short list is taken for a noun, so
    "I gave her flowers" becomes "I gave his flowers". Names of persons stay.
    """
    table, pattern = _terms(swaps.pairs, tuple(swaps.ambiguous))

    def replace(match: re.Match[str]) -> str:
        article, old = match["article"] or "", match["term"]
        key = re.sub(r"[\s-]+", " ", old.casefold())
        if key in swaps.ambiguous:
            before_noun, otherwise = swaps.ambiguous[key]
            following = re.match(r"\s+([^\W\d_]+)", text[match.end() : match.end() + 64])
            new = before_noun if following and following[1].casefold() not in _NO_NOUN else otherwise
        else:
            new = table[key]
        if article:
            word = "an" if re.match(r"(?!eu|uni|one)[aeiou]", new) else "a"
            article = _cased(word, article[:1]) + article[len(article.rstrip()) :]
        return article + _cased(new, old)

    return pattern.sub(replace, text)


def swap_gap(
    originals: Sequence[float | None],
    swapped_scores: Sequence[float | None],
    *,
    min_pairs: int = MIN_GROUP,
    confidence: float = 0.95,
    seed: int = 0,
) -> Gap:
    """Return the mean change of a score when only the group changes: swapped minus original.

    Args:
        originals: Score of each text, e.g. its sentiment, or 1 for a refusal.
        swapped_scores: Score of the same texts after `swapped`. Leave out texts in which nothing was swapped.
        min_pairs: Smallest number of texts that is judged.
        confidence: Of the percentile bootstrap interval over texts (2,000 draws).
        seed: Of the bootstrap.

    Raises:
        DataError: The numbers of scores differ.
    """
    if len(originals) != len(swapped_scores):
        raise DataError(f"scores are paired by text, but there are {len(originals)} and {len(swapped_scores)}.")
    pairs = np.array([[nan if score is None else score for score in row] for row in (originals, swapped_scores)], np.float64)
    sizes = {"pairs": len(originals)}
    if broken := int((~np.isfinite(pairs)).any(axis=0).sum()):
        return Gap(
            nan, nan, nan, sizes=sizes, why=f"{broken} of {len(originals)} pairs have a score that is missing or not finite"
        )
    if len(originals) < max(2, min_pairs):
        return Gap(
            nan, nan, nan, sizes=sizes, why=f"{len(originals)} pairs are too few to say; {max(2, min_pairs)} are needed"
        )
    change = pairs[1] - pairs[0]
    random = np.random.default_rng(seed)
    means = np.array([change[random.integers(0, len(change), len(change))].mean() for _ in range(_DRAWS)])
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
    rates = {"original": float(pairs[0].mean()), "swapped": float(pairs[1].mean())}
    if np.ptp(change) == 0 and set(np.unique(pairs)) <= {0.0, 1.0}:  # no draw can show a change that is rare
        most = exact_interval(0, len(change), confidence)[1]
        low, high = max(-1.0, low - most), min(1.0, high + most)
    return Gap(float(change.mean()), low, high, rates, sizes)


def _cased(new: str, old: str) -> str:
    if old.isupper() and len(old) > 1:
        return new.upper()
    return new[:1].upper() + new[1:] if old[:1].isupper() else new


@lru_cache(maxsize=32)
def _terms(pairs: tuple[tuple[str, str], ...], ambiguous: tuple[str, ...]) -> tuple[dict[str, str], re.Pattern[str]]:
    table = {old.casefold(): new for pair in pairs for old, new in (pair, pair[::-1])}
    terms = sorted((*table, *ambiguous), key=len, reverse=True)
    listed = "|".join(re.escape(term).replace(r"\ ", r"[\s-]+") for term in terms)
    return table, re.compile(rf"(?<!\w)(?P<article>an?\s+)?(?<!\w)(?P<term>{listed})(?!\w)", re.IGNORECASE)
