"""Convert columns of text to numbers, booleans and times without losing anything.

Arrow would drop leading zeros, round large integers, and read 0x10 as a number. Here a value has a type only if it is
written the way that type is written, so only surrounding spaces and the spelling of floats are lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from hasten.data.convert.exact import exact_float

MISSING = pa.array(
    ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL", "NaN",
     "n/a", "nan", "null"]
)  # fmt: skip
"""Text that means a missing value in columns that are not text."""
_WRITTEN: dict[pa.DataType, str] = {
    pa.bool_(): r"true|false|True|False|TRUE|FALSE",
    pa.int64(): r"0|-?[1-9][0-9]*",
    pa.uint64(): r"0|[1-9][0-9]*",
    pa.float64(): r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|-?inf",
    pa.date32(): r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    pa.timestamp("s"): r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2})?",
    pa.timestamp("ns"): r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?",
}
"""How values of a type are written. The first type that fits most values is chosen."""
_DOUBTFUL = r"^-?[0-9]{16,}|[eE][+-]?[0-9]{3,}$|[0-9]{300,}"
"""Numbers that may be too large, too small, or rounded."""
_LEADING_ZERO = r"^-?0[0-9]"
_THOUSANDS = r"^-?[1-9][0-9]{0,2}(\.[0-9]{3})+$"
_MAJORITY_FRAC = 0.99
"""Minimum share of values that fit a type for the others to be treated as errors. Otherwise the column is text."""


def type_of_texts(texts: pa.Array, *, is_point_doubtful: bool = False) -> pa.DataType:
    """Choose the type of a column from some of its values.

    Args:
        texts: The values.
        is_point_doubtful: Whether a point may separate thousands, as where a comma separates decimals. If it may do so in
            all values that have one, they stay text.
    """
    given = pc.drop_null(_present(texts))
    if not len(given) or pc.any(pc.match_substring_regex(given, _LEADING_ZERO)).as_py():
        return pa.string()
    if is_point_doubtful:
        pointed = given.filter(pc.match_substring(given, "."))
        if len(pointed) and pc.all(pc.match_substring_regex(pointed, _THOUSANDS)).as_py():
            return pa.string()
    fitting = {kind: pc.sum(_fits(given, kind)).as_py() for kind in _WRITTEN}
    kind = max(fitting, key=lambda kind: fitting[kind])
    return kind if fitting[kind] >= _MAJORITY_FRAC * len(given) else pa.string()


def converted(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Sequence[int]]:
    """Convert texts to a type.

    Returns:
        The values, [texts], and the indices of texts that are not of this type; their values are null.
    """
    if pa.types.is_string(kind):
        return texts, ()
    if kind not in _WRITTEN:
        return _one_by_one(texts, kind)
    given = _present(texts)
    fits = _fits(given, kind)
    values = pc.cast(pc.if_else(fits, given, None), kind)
    return values, pc.indices_nonzero(pc.invert(fits)).to_pylist()


def _present(texts: pa.Array) -> pa.Array:
    """Return texts without surrounding spaces; null for missing values."""
    texts = pc.ascii_trim_whitespace(texts)
    return pc.if_else(pc.is_in(texts, value_set=MISSING), None, texts)


def _fits(given: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return True for each text that this type represents exactly, [texts]; null for null."""
    fits = pc.match_substring_regex(given, f"^({_WRITTEN[kind]})$")
    doubtful = fits
    if not pa.types.is_temporal(kind):
        doubtful = pc.and_(fits, pc.match_substring_regex(given, _DOUBTFUL))
    elif _casts(pc.if_else(fits, given, None), kind):
        return fits
    if not pc.any(doubtful).as_py():
        return fits
    exact = [
        None if text is None else fit and (not doubt or _is_exact(text, kind))
        for text, fit, doubt in zip(given.to_pylist(), fits.to_pylist(), doubtful.to_pylist(), strict=True)
    ]
    return pa.array(exact, pa.bool_())


def _is_exact(text: str, kind: pa.DataType) -> bool:
    if pa.types.is_integer(kind):
        low, high = (0, 2**64 - 1) if kind == pa.uint64() else (-(2**63), 2**63 - 1)
        return len(text) < 21 and low <= int(text) <= high
    if pa.types.is_floating(kind):
        try:
            exact_float(text)
        except ValueError:
            return False
        return True
    return _casts(pa.array([text]), kind)


def _casts(texts: pa.Array, kind: pa.DataType) -> bool:
    try:
        pc.cast(texts, kind)
    except pa.ArrowInvalid:
        return False
    return True


def _one_by_one(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Sequence[int]]:
    """Convert texts to a type that only an existing store has: what Arrow converts must come back as the same text."""
    given = _present(texts)
    good = [
        text is None
        or (_casts(one := pa.array([text]), kind) and pc.cast(pc.cast(one, kind), pa.string())[0].as_py() == text)
        for text in given.to_pylist()
    ]
    values = pc.cast(pc.if_else(pa.array(good, pa.bool_()), given, None), kind)
    return values, [index for index, fits in enumerate(good) if not fits]
