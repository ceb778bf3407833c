"""Replace what identifies a person in text by tokens, and count by kind, never keeping what was found.

    identifiers = Identifiers(salt=secret)
    identifiers.replaced("I am Anna, call 555-010-9999")   # ("I am [name:1c0f6b2a], call [phone:9d0e4a51]", Counter(...))

The kinds follow the 18 identifiers of the Safe Harbor method. All patterns are one expression of RE2, which reads a
text once, in time linear in its length. Patterns find identifiers with a form (dates, phones, addresses of all sorts)
or a cue before them ("my MRN is ..."), and names after a cue or a title, or on a list of common given names. Other
names, and places without a cue, are not found: a text in which nothing was found may still identify somebody.
Photographs and voice prints are not text: leave such columns out, or encrypt them with `hasten.data.private.vault`.

A token depends on the salt, the kind and the text, so one person has one token as long as the salt is the same. The
salt must stay secret: who has it can test guesses.

Source: 45 CFR 164.514(b)(2).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from hasten.core.errors import DataError, MachineError
from hasten.data.store.store import Store
from hasten.data.store.write import StoreWriter

_ROWS = 1024

_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|(?-i:May)|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    r"nov(?:ember)?|dec(?:ember)?)\.?"
)
_YEAR, _DAY = r"(?:19|20)\d\d", r"(?:3[01]|[12]\d|0?[1-9])(?:st|nd|rd|th)?"
_WORD = r"\p{Lu}[\p{L}'’]+"
_NAME = rf"{_WORD}(?:-{_WORD})?(?: +{_WORD}(?:-{_WORD})?)?"
_CODE = r"(?:[A-Z]{1,4}[- ]?)?\d[\dA-Z-]{3,18}\b"
_IS = r"(?i:\s*(?:\(\p{L}+\)|number|numbers|no\.?|num|id|#|code|is|are|was|:|=))*\s*"
_RELATION = (
    "husband|wife|son|daughter|mother|mom|mum|father|dad|brother|sister|friend|boss|manager|coworker|colleague|therapist|"
    "counsell?or|partner|boyfriend|girlfriend|fianc[eé]e?|ex|neighbou?r|teacher|roommate|uncle|aunt|cousin|niece|nephew"
)
_GIVEN = (
    "James|John|Robert|Michael|William|David|Richard|Joseph|Thomas|Charles|Christopher|Daniel|Matthew|Anthony|Donald|Steven|"
    "Paul|Andrew|Joshua|Kenneth|Kevin|Brian|George|Edward|Ronald|Timothy|Jason|Jeffrey|Ryan|Jacob|Gary|Nicholas|Eric|"
    "Jonathan|Stephen|Larry|Justin|Scott|Brandon|Benjamin|Samuel|Gregory|Alexander|Patrick|Raymond|Jack|Dennis|Jerry|Tyler|"
    "Aaron|Jose|José|Adam|Nathan|Henry|Douglas|Zachary|Peter|Kyle|Ethan|Walter|Noah|Jeremy|Keith|Roger|Terry|Carlos|Juan|"
    "Luis|Miguel|Ahmed|Mohammed|Muhammad|Ali|Omar|Wei|Mary|Patricia|Jennifer|Linda|Elizabeth|Barbara|Susan|Jessica|Sarah|"
    "Karen|Lisa|Nancy|Betty|Margaret|Sandra|Ashley|Kimberly|Emily|Donna|Michelle|Carol|Amanda|Melissa|Deborah|Stephanie|"
    "Rebecca|Sharon|Laura|Cynthia|Kathleen|Amy|Angela|Shirley|Anna|Brenda|Pamela|Emma|Nicole|Helen|Samantha|Katherine|"
    "Christine|Debra|Rachel|Carolyn|Janet|Catherine|Maria|María|Heather|Diane|Ruth|Julie|Olivia|Joyce|Virginia|Kelly|Lauren|"
    "Christina|Joan|Evelyn|Judith|Andrea|Hannah|Megan|Cheryl|Jacqueline|Martha|Madison|Teresa|Gloria|Sara|Janice|Ann|Kathryn|"
    "Sofia|Sophia|Isabella|Fatima|Aisha|Priya|Mei|Jonas|Lukas|Lena|Julia|Petra|Ingrid|Pierre|Chloé|Giulia|Marco|Pedro|Ana"
)
_STREET = (
    r"(?:St(?:reet)?|Ave(?:nue)?|R(?:oa)?d|Blvd|Boulevard|Lane|Ln|Drive|Dr|Court|Ct|Way|Place|Pl|Square|Terrace|Highway|Hwy)"
    r"\b\.?(?:,? (?:Apt|Unit|Suite|#)\.? ?\w{1,5})?"
)
_STATE = "A[KLRZ]|C[AOT]|D[CE]|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|O[HKR]|PA|RI|S[CD]|T[NX]|UT|V[AT]|W[AIVY]"
_NO_NAME = re.compile(
    r"(?:(?:i|he|she|it|we|they|you)(?:['’]\w+)?|his|her|my|our|your|their|this|that|these|those|the|an?|and|but|or|so|if|when|while|"
    r"after|before|because|since|then|there|now|not|no|yes|who|what|where|why|how|god|ok|also|just|even|sometimes|always|never)\b",
    re.IGNORECASE,
)
"""Words that may follow a cue and begin a sentence."""
_TITLE = r"\b(?:Dr|Mr|Mrs|Ms|Miss|Mx|Prof|Professor|Doctor|Nurse|Pastor|Rabbi|Rev|Sgt|Officer|Judge|Coach)\b\.?\s+"
_CUE_OF_NAME = r"\b(?i:my (?:full |first |last )?name(?:'s| is)|i am called|call me|name is|named|signed,?|sincerely,?)\s+"


def _cue(words: str) -> str:
    return rf"\b(?i:{words}){_IS}"


_PATTERNS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    # kind: (what stands before the identifier, the identifier, what must follow it)
    "url": (("", r"(?i:https?://|ftp://|www\.)[^\s<>\"']*[\w/]"),),
    "email": (("", r"[\p{L}\d._%+-]+@[\p{L}\d-]+(?:\.[\p{L}\d-]+)+"),),
    "device": (
        (_cue("imei|serial|device id|device|pacemaker|mac address"), _CODE),
        ("", r"\b(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}\b"),
    ),
    "ip": (
        ("", r"\b(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)\b"),
        ("", r"\b(?:[0-9A-Fa-f]{1,4}:){4,7}[0-9A-Fa-f]{1,4}\b"),
    ),
    "ssn": (
        (_cue("ssn|social security|social security number"), r"\d{3}[- ]?\d{2}[- ]?\d{4}\b"),
        ("", r"\b\d{3}-\d{2}-\d{4}\b"),
    ),
    "record": ((_cue("mrn|medical record|patient|chart|case"), _CODE),),
    "plan": ((_cue("health plan|insurance|policy|member|beneficiary|medicare|medicaid|nhs"), _CODE),),
    "account": (
        (_cue("account|acct|routing|bank|card|credit card"), r"\d[\d -]{4,22}\d\b"),
        ("", r"\b(?:\d{4}[- ]){3}\d{4}\b"),
        ("", r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b"),
    ),
    "licence": ((_cue("licen[cs]e|driver'?s licen[cs]e|passport|certificate|permit"), _CODE),),
    "vehicle": (
        (_cue("plate|license plate|licence plate|number plate|registration|vin"), r"[A-Z0-9]{1,4}[- ]?[A-Z0-9]{2,17}\b"),
        ("", r"\b[A-HJ-NPR-Z0-9]{3}[A-HJ-NPR-Z][A-HJ-NPR-Z0-9]{7}\d{6}\b"),
    ),
    "fax": ((_cue("fax"), r"\+?\(?\d[\d ().-]{5,18}\d\b"),),
    "date": (
        ("", rf"\b{_YEAR}[-/.](?:1[0-2]|0?[1-9])[-/.](?:3[01]|[12]\d|0?[1-9])\b"),
        ("", r"\b(?:3[01]|[12]\d|0?[1-9])[-/.](?:3[01]|[12]\d|0?[1-9])[-/.](?:(?:19|20)\d\d|\d\d)\b"),
        ("", rf"\b(?i:{_MONTH}\s+{_DAY})\b(?:,?\s+{_YEAR}\b)?"),
        ("", rf"\b(?i:{_DAY}\s+(?:of\s+)?{_MONTH})(?:,?\s+{_YEAR}\b|\b)"),
        ("", rf"\b(?i:{_MONTH}),?\s+{_YEAR}\b"),
        (r"\b(?i:born (?:on|in)|birthday is|dob)\W{0,3}", r"\d[\d/. -]{3,9}\d\b"),
    ),
    "phone": (
        ("", r"\+\d{1,3}[ .-]?\(?\d{1,4}\)?(?:[ .-]?\d{2,4}){2,4}\b"),
        ("", r"(?:\(\d{3,5}\)|\b\d{3,5})[ .-]?\d{3,4}[ .-]\d{3,4}\b"),
        ("", r"\b\d{3}[.-]\d{4}\b"),
        (_cue("call|text|phone|cell|mobile|tel|whatsapp|reach me at|my number"), r"\+?\(?\d[\d ().-]{5,16}\d\b"),
    ),
    "place": (
        ("", rf"\b\d{{1,5}}[A-Z]? (?:\p{{Lu}}[\p{{L}}.'-]*\s){{1,4}}{_STREET}"),
        ("", rf"\b{_WORD}(?: {_WORD})?(?:,? (?:{_STATE}) \d{{5}}(?:-\d{{4}})?\b|, (?:{_STATE})\b)"),
        (_cue("zip|zip code|postcode|postal code|zipcode"), r"(?:\d{5}(?:-\d{4})?|[A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2})\b"),
        (r"\b(?i:i live in|we live in|i'm from|i am from|moved to|grew up in|live near|living in|born in)\s+", _NAME),
    ),
    "age": (
        ("", r"\b(?:9\d|1[0-2]\d)(?i:[- ]?(?:years?|yrs?)[- ]olds?|[- ]?y/?o)\b"),
        (r"\b(?i:aged?|turn(?:ed|ing|s)?|i am|i'm|is|was)\s+", r"(?:9\d|1[01]\d)", r"(?:[^\d%.]|\.\D|\.?$)"),
    ),
    "name": (
        (_TITLE, _NAME),
        (_CUE_OF_NAME, _NAME),
        (rf"\b(?i:my (?:(?:best|old|late|older|younger|new|big|little) )?(?:{_RELATION})),?\s+(?i:is called\s+)?", _NAME),
        ("", rf"\b(?:{_GIVEN})\b(?:[- ]{_WORD}(?:-{_WORD})?)?"),
    ),
    "other": (
        ("", r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
        (_cue("student|employee|employee id|badge|username|user name|handle|reference|ticket|confirmation"),
         r"(?:@?[\w.-]*\d[\w.-]*\w|@[\w.-]+\w)"),
        (r"(?:^|\s)", r"@[A-Za-z]\w{2,30}\b"),
        ("", r"\b\d{9,}\b"),
    ),
}  # fmt: skip
KINDS = tuple(_PATTERNS)
"""Kinds of identifiers: `record` is a medical record number, `plan` of a health plan, `other` any other number or handle."""


@lru_cache(maxsize=1)
def _expression() -> Any:
    try:
        import re2  # noqa: PLC0415  of the extra `private`
    except ImportError as error:
        raise MachineError("identifiers are found with RE2: pip install 'hasten[private]'") from error
    options = re2.Options()
    options.max_mem = 2**27  # of the automaton
    parts = [
        f"{before}(?P<{kind}_{number}>{found}){''.join(after)}"
        for kind, patterns in _PATTERNS.items()
        for number, (before, found, *after) in enumerate(patterns)
    ]
    return re2.compile("|".join(parts), options)


class Identifiers:
    """Replace identifiers by tokens.

    Args:
        salt: Secret bytes, at least 16, which make tokens that cannot be guessed. None gives tokens of the kind alone.

    Raises:
        DataError: The salt is too short.
        MachineError: RE2 is not installed.
    """

    def __init__(self, salt: bytes | None = None) -> None:
        if salt is not None and len(salt) < 16:
            raise DataError(f"a salt needs at least 16 secret bytes, not {len(salt)}: for example secrets.token_bytes(32).")
        self._salt, self._expression = salt, _expression()

    def replaced(self, text: str) -> tuple[str, Counter[str]]:
        """Return a text with tokens in place of identifiers, and how many there were of each kind.

        Raises:
            DataError: The text has half a surrogate.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"the text has half a surrogate at {error.start:,}: correct the text.") from None
        counts: Counter[str] = Counter()
        parts, end = list[str](), 0
        for match in self._expression.finditer(text):
            kind = match.lastgroup.partition("_")[0]
            first, last = match.span(match.lastindex)
            if kind == "name" and _NO_NAME.match(text, first):
                continue
            parts += text[end:first], self._token(kind, text[first:last])
            counts[kind] += 1
            end = last
        return "".join([*parts, text[end:]]), counts

    def replaced_in(self, name: str, values: pa.Array, *, whole: bool = False) -> tuple[pa.Array, Counter[str]]:
        """Return a column with tokens in place of identifiers, and how many there were of each kind.

        Args:
            name: Name of the column, for messages.
            values: Text, or lists of text.
            whole: Replace each value by a token, whatever it is. Needs a salt.

        Raises:
            DataError: The column is not text, or a text has half a surrogate.
        """
        kind = getattr(values, "type", f"of type {values.dtype}" if hasattr(values, "dtype") else "of objects")
        if kind not in (pa.string(), pa.list_(pa.string())) or (whole and kind != pa.string()):
            raise DataError(f"the column {name} is {kind}: identifiers are replaced in text and lists of text.")
        counts: Counter[str] = Counter()

        def new(text: str | None) -> str | None:
            if text is None or whole:
                return text and self.pseudonym(text)
            replaced, found = self.replaced(text)
            counts.update(found)
            return replaced

        made = [list(map(new, value)) if isinstance(value, list) else new(value) for value in values.to_pylist()]
        return pa.array(made, kind), counts

    def pseudonym(self, text: str) -> str:
        """Return a token for a whole text, of 32 hexadecimal digits.

        Raises:
            DataError: There is no salt, so anyone could test guesses.
        """
        if self._salt is None:
            raise DataError("whole texts are replaced with a salt only: give one, such as secrets.token_bytes(32).")
        return hmac.new(self._salt, f"whole\0{text}".encode(), hashlib.sha256).hexdigest()[:32]

    def _token(self, kind: str, found: str) -> str:
        if self._salt is None:
            return f"[{kind}]"
        same = re.sub(r"\W+", " ", found.casefold()).strip()
        digest = hmac.new(self._salt, f"{kind}\0{same}".encode(), hashlib.sha256).hexdigest()
        return f"[{kind}:{digest[:8]}]"


def replace_in_store(
    source: Store, folder: str | os.PathLike[str], columns: Sequence[str], identifiers: Identifiers
) -> Counter[str]:
    """Write a copy of a store with tokens in place of identifiers, and return how many there were of each kind.

    Args:
        source: The store.
        folder: The new store.
        columns: Columns of text, or of lists of text.
        identifiers: What to replace, and the salt.

    Raises:
        DataError: There is no such column of text, or the new store exists already.
    """
    counts: Counter[str] = Counter()
    source.checked_columns(columns)
    with StoreWriter(folder, provenance=source.manifest.provenance) as writer:
        for first in range(0, len(source), _ROWS):
            rows = source.take(range(first, min(first + _ROWS, len(source))))
            for name in columns:
                rows[name], found = identifiers.replaced_in(name, rows[name])
                counts.update(found)
            writer.write(rows)
    return counts
