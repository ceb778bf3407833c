"""Report the balance of groups in stores, and find the weights of the stores that reach target shares in a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hasten.core.errors import DataError
from hasten.core.gates import Share
from hasten.recipes.dialogue.bias.scan import MIN_TEXTS

_ROUNDS = 20_000


@dataclass(frozen=True)
class Balance:
    """The balance of a data set.

    Attributes:
        shares: Group -> share of the items whose group is known.
        too_few: Groups with too few items to say more than their number.
        num_unknown: Number of items whose group is unknown.
    """

    shares: Mapping[str, Share]
    too_few: tuple[str, ...]
    num_unknown: int


def balance(groups: Sequence[str | None], *, min_items: int = MIN_TEXTS) -> Balance:
    """Return the share of each group among the items whose group is known.

    Args:
        groups: Group of each item, e.g. from `Scanner.labels`; None is unknown.
        min_items: A group with fewer items is in `too_few`.
    """
    counts = Counter(group for group in groups if group is not None)
    total = counts.total()
    shares = {group: Share(count, total) for group, count in sorted(counts.items())}
    return Balance(shares, tuple(group for group in shares if counts[group] < min_items), len(groups) - total)


def weights_for(
    stores: Sequence[Sequence[str | None]], targets: Mapping[str, float], *, tolerance: float = 0.005
) -> list[float]:
    """Return weights for `MixedStream`, one per store, that reach target shares of groups among the items of known group.

    The weights minimise the Kullback-Leibler divergence from the targets, by expectation maximisation. Items of unknown
    group, and of groups without a target, are drawn too and do not count.

    Args:
        stores: For each store, the group of each item; None is unknown.
        targets: Group -> share, above 0; all together 1.
        tolerance: Largest difference from a target.

    Raises:
        DataError: The targets are invalid, or no weights reach them.
    """
    wanted = np.array(list(targets.values()), np.float64)
    if not len(wanted) or not np.isfinite(wanted).all() or (wanted <= 0).any() or abs(wanted.sum() - 1) > 1e-6:
        raise DataError(f"target shares must be above 0, and 1 together: got {dict(targets)}.")
    counts = [Counter(groups) for groups in stores]
    table = np.array([[count[group] for group in targets] for count in counts], np.float64).reshape(-1, len(wanted))
    known = table.sum(axis=1)
    used = known > 0
    for group, total in zip(targets, table.sum(axis=0), strict=True):
        if total == 0:
            raise DataError(f"no store has items of the group {group!r}: add some, or leave it out of the targets.")
    within = table[used] / known[used, None]
    parts = np.full(len(within), 1 / len(within))
    for _ in range(_ROUNDS):
        new = parts * (within @ (wanted / (parts @ within)))
        done = np.abs(new - parts).max() < 1e-12
        parts = new
        if done:
            break
    reached = parts @ within
    if np.abs(reached - wanted).max() > tolerance:
        found = ", ".join(f"{group} {share:.3f}" for group, share in zip(targets, reached, strict=True))
        raise DataError(
            f"no weights of these stores reach the target shares; the nearest are {found}. Split the stores by group."
        )
    sizes = np.array([len(groups) for groups in stores], np.float64)
    weights = np.zeros(len(stores))
    weights[used] = parts * sizes[used] / known[used]
    return [float(weight) for weight in weights / weights.sum()]
