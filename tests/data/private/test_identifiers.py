"""Identifiers are found by kind, replaced by tokens, and never kept."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hasten.core.errors import DataError
from hasten.data import Store, StoreWriter
from hasten.data.private.identifiers import KINDS, Identifiers, replace_in_store

SALT = bytes(range(32))
EXAMPLES = {
    "url": ["Read https://example.org/a?b=c#d.", "it is on www.example.org/help"],
    "email": ["write to ann.o-neil+x@mail.example.co.uk please", "¿josé@correo.es?"],
    "device": ["serial number: SN-0042-9931", "mac 00:1B:44:11:3A:B7 here", "IMEI 356938035643809"],
    "ip": ["from 192.168.10.254 today", "from fe80:0:0:0:200:f8ff:fe21:67cf today"],
    "ssn": ["my SSN is 123-45-6789", "social security number 123456789"],
    "record": ["MRN: 00123456", "my medical record number is A-99812"],
    "plan": ["policy number ABC-998877", "Medicare ID: 1EG4-TE5-MK72"],
    "account": ["card 4111 1111 1111 1111", "IBAN DE89 3704 0044 0532 0130 00", "account number 00998877665"],
    "licence": ["driver's license D123-4567-8901", "passport no. 912803456"],
    "vehicle": ["plate: ABC 1234", "it has 1HGCM82633A004352 on it"],
    "fax": ["fax: (555) 010-7788"],
    "date": ["on 3/14/2019", "on 2019-03-14", "on March 14th, 2019", "14th of March 2019", "in May 2019", "On May 5 we"],
    "phone": ["555-010-9988", "(555) 010-9988", "+44 20 7946 0958", "call 5550109988", "text me at 555 010 9988"],
    "place": ["at 12 Old Oak Street, Apt 4", "in Springfield, IL 62704", "I live in San Bernardino", "zip code 90210"],
    "age": ["a 97-year-old man", "she turned 101 last week"],
    "name": ["my name is Zoltan Szabo", "Dr. Okonkwo said", "my wife Anneliese left", "then Jennifer Smith came"],
    "other": ["employee id E-55231", "follow @quiet_river", "550e8400-e29b-41d4-a716-446655440000", "number 1234567890123"],
}  # fmt: skip
PLAIN = [
    "I have 3 kids, 2 jobs and no time, 24/7, since 2019.",
    "It is 50/50; I slept 4-5 hours, at most 6.5, for 100% sure.",
    "My dad I'm afraid of, and my boss After work. We may 3 times a week.",
    "Chapter 12, page 345: the 5 stages; 1,200 calories; $2,500 a month; version 2.10.3.",
    "I weigh 193 pounds and I am 28 years old. He is 45.",
    "On Monday morning at 10:30 I went to the Bible study, then to Mass.",
    "OK to say no. MY ID was lost. I was on time.",
]


def test_every_kind_has_examples() -> None:
    assert tuple(EXAMPLES) == KINDS


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in EXAMPLES.items() for text in texts])
def test_one_identifier(kind: str, text: str) -> None:
    replaced, counts = Identifiers().replaced(text)
    assert counts == {kind: 1}
    assert f"[{kind}]" in replaced
    left = replaced.replace(f"[{kind}]", "")
    assert not any(character.isdigit() for character in left)
    assert len(left) < len(text)


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_identifier_stays(text: str) -> None:
    assert Identifiers().replaced(text) == (text, Counter())


def test_a_person_has_one_token_for_each_salt() -> None:
    first, _ = Identifiers(SALT).replaced("my name is Zoltan Szabo. Dr.  ZOLTAN SZABO? Dr. Zoltan  Szabo!")
    tokens = [part.split("]")[0] for part in first.split("[")[1:]]
    assert len(tokens) == 3
    assert len({token for token in tokens if token.startswith("name:")}) == 1
    other, _ = Identifiers(bytes(32)).replaced("my name is Zoltan Szabo.")
    assert other.split("[")[1].split("]")[0] != tokens[0]
    with pytest.raises(DataError, match="at least 16 secret bytes, not 4"):
        Identifiers(b"salt")


def test_planted_identifiers_are_found() -> None:
    """At least 95 % of what is planted into text is gone, and little else."""
    draw = random.Random(0)
    plain = [word for text in PLAIN for word in text.split(". ")]
    wanted = gone = false = 0
    for _ in range(400):
        kind = draw.choice(KINDS)
        text = " ".join([draw.choice(plain), draw.choice(EXAMPLES[kind]), draw.choice(plain)])
        _, counts = Identifiers().replaced(text)
        wanted += 1
        gone += counts[kind] > 0
        false += counts.total() - 1
    assert gone >= 0.95 * wanted
    assert false <= 0.05 * wanted


def test_long_and_strange_texts() -> None:
    identifiers = Identifiers(SALT)
    assert identifiers.replaced("") == ("", Counter())
    with pytest.raises(DataError, match="half a surrogate at 4"):
        identifiers.replaced("call\ud800 555-010-9988")
    text = "1-" * 200_000 + "\0 \N{PILE OF POO} e\N{COMBINING ACUTE ACCENT} Dr. Smith"
    replaced, counts = identifiers.replaced(text)
    assert counts["name"] == 1
    assert "Smith" not in replaced


def test_a_store_is_copied_without_identifiers(tmp_path: Path) -> None:
    rows = {"id": ["a", "b"], "text": ["call 555-010-9988", None], "parts": [["Dr. Smith", None], []], "n": np.arange(2)}
    with StoreWriter(tmp_path / "plain") as writer:
        writer.write(rows)
    source = Store(tmp_path / "plain")
    counts = replace_in_store(source, tmp_path / "new", ["text", "parts"], Identifiers())
    assert counts == {"phone": 1, "name": 1}
    new = {name: part.tolist() for name, part in Store(tmp_path / "new").take([0, 1]).items()}
    assert new == {"id": ["a", "b"], "text": ["call [phone]", None], "parts": [["Dr. [name]", None], []], "n": [0, 1]}
    for name in ("n", "x"):
        with pytest.raises(DataError, match=f"column '?{name}"):
            replace_in_store(source, tmp_path / "other", [name], Identifiers())
