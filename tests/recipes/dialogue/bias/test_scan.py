import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hasten.core.errors import CorruptError, DataError
from hasten.recipes.dialogue.bias.patterns import folded, load_patterns
from hasten.recipes.dialogue.bias.scan import Counts, Ledger, Scanner

GROUP = '[[groups]]\nid = "gender.women"\nsource = "s"\n[groups.patterns]\n'


@pytest.fixture(scope="module")
def scanner() -> Scanner:
    return Scanner()


def random_texts(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    words = [word for pattern in load_patterns().patterns for word in pattern.words]
    fillers = ["the", "table", "shells", "ohe", "x", "ﬁne", "naïve", "İran", "1990", "_she_", "mañana", "…"]
    borders = [" ", ", ", "-", " - ", "\n", "\u00a0", "'", "’", ". ", "", "/", "\u0301 ", "  "]

    def changed(word: str) -> str:
        return rng.choice([word, word.upper(), word.title(), word + "s", "x" + word])

    def text() -> str:
        parts = (changed(rng.choice(words)) if rng.random() < 0.5 else rng.choice(fillers) for _ in range(rng.randrange(12)))
        return "".join(part + rng.choice(borders) for part in parts)

    return [text() for _ in range(count)]


def by_re(texts: Sequence[str]) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Count with one loop of `re` per pattern over the folded texts."""
    mentions: dict[str, int] = {}
    found: dict[str, int] = {}
    groups: dict[str, set[int]] = {}
    lines = [f" {folded(text).decode()} " for text in texts]
    for pattern in load_patterns().patterns:
        words = [re.compile(f"(?= {re.escape(folded(word).decode())} )") for word in pattern.words]
        numbers = [sum(len(word.findall(line)) for word in words) for line in lines]
        if sum(numbers):
            mentions[pattern.id] = sum(numbers)
            found[pattern.id] = sum(map(bool, numbers))
            groups.setdefault(pattern.group, set()).update(i for i, number in enumerate(numbers) if number)
    return mentions, found, {group: len(numbers) for group, numbers in groups.items()}


def test_the_file_has_at_least_200_patterns_each_with_a_source() -> None:
    patterns = load_patterns()
    assert len(patterns.patterns) >= 200
    assert all(len(pattern.source) > 10 for pattern in patterns.patterns)
    dimensions = {group.partition(".")[0] for group in patterns.groups}
    assert dimensions >= {
        "gender",
        "age",
        "religion",
        "ethnicity",
        "nationality",
        "disability",
        "orientation",
        "class",
        "family",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version = 1\n[[groups]", "not valid TOML"),
        (GROUP + 'a = ["she"]', "version = None"),
        ("version = 1", "no patterns"),
        ('version = 1\n[[groups]]\nid = "gender.women"\n[groups.patterns]\na = ["she"]', "Entry 1 .* no source"),
        ("version = 1\n" + GROUP + 'a = "she"', "'gender.women'.* pattern 'a' must be a list"),
        ("version = 1\n" + GROUP + 'a = ["--"]', "pattern 'a': '--' is not a word"),
        ("version = 1\n" + GROUP + 'a = ["lad(y|ies)"]', "is not a word"),
        ("version = 1\n" + GROUP + 'a = ["old lady", "Lady"]', "'Lady' is repeated or part"),
        ("version = 1\n" + GROUP + 'B = ["she"]', "pattern 'B'"),
        ("version = 1\n" + GROUP + 'a = ["she"]\n' + GROUP + 'b = ["her"]', "repeats the id"),
        ("version = 1\n" + GROUP.replace("gender.women", "women") + 'a = ["she"]', "DIMENSION.GROUP"),
        (
            "version = 1\n" + GROUP + 'a = ["she"]\n[[swaps]]\nid = "x"\nsource = "s"\ngroups = ["a.b", "c.d"]',
            "'x'.* two groups",
        ),
    ],
)
def test_a_bad_file_is_refused_with_the_entry(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "patterns.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=says):
        load_patterns(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        load_patterns(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "pattern", "count"),
    [
        ("She said she. SHE; (she) 'she' she's", "gender.women.she", 6),
        ("shed ashen _she she1 shé", "gender.women.she", 0),
        ("she\u0301 she\u0301s", "gender.women.she", 0),  # a combining mark belongs to the word
        ("s\u00adhe \uff33\uff28\uff25", "gender.women.she", 2),  # a soft hyphen, and full-width letters
        ("middle-aged, Middle  aged\nmiddle\u2013aged", "age.middle.middle_aged", 3),
        ("middle. Aged, middle, aged", "age.middle.middle_aged", 0),
        ("ME\u0301XICO M\u00c9XICO", "nationality.central_america.mexican", 2),
        ("Iran iran IRAN", "nationality.southern_asia.iranian", 3),
        ("\u0130ran \u0131ran", "nationality.southern_asia.iranian", 0),  # Turkish letters differ from i by default folding
        ("Baha\u2019i baha'i BAHA'I", "religion.other.bahai", 3),
        ("Ma\u0304ori m\u0101ori", "ethnicity.indigenous.maori", 2),
        ("", "gender.women.she", 0),
    ],
)
def test_words_are_whole_and_case_insensitive_in_unicode(scanner: Scanner, text: str, pattern: str, count: int) -> None:
    assert scanner.count([text]).mentions.get(pattern, 0) == count


def test_sharp_s_folds_to_ss(tmp_path: Path) -> None:
    path = tmp_path / "patterns.toml"
    path.write_text("version = 1\n" + GROUP + 'a = ["weiß"]')
    assert Scanner(load_patterns(path)).count(["WEISS weiß WEIẞ weis"]).mentions == {"gender.women.a": 3}


def test_overlapping_patterns_all_count_and_a_group_counts_a_text_once(scanner: Scanner) -> None:
    counts = scanner.count(["an old woman, a woman", "women", "table"])
    assert counts.mentions == {"gender.women.woman": 3, "age.old.old_person": 1}
    assert counts.texts == {"gender.women.woman": 2, "age.old.old_person": 1}
    assert counts.group_texts == {"gender.women": 2, "age.old": 1}


def test_words_do_not_match_across_texts(scanner: Scanner) -> None:
    assert scanner.count(["middle", "aged", "", " old", "woman"]).mentions == {"gender.women.woman": 1}


def test_counts_equal_those_of_a_loop_of_re(scanner: Scanner) -> None:
    texts = random_texts(1500)
    counts = scanner.count(texts)
    assert (counts.mentions, counts.texts, counts.group_texts) == by_re(texts)
    assert sum(counts.mentions.values()) > 2000


def test_a_text_of_a_million_characters_counts_exactly(scanner: Scanner) -> None:
    text = ("xshe " * 10 + "She ") * 18_519
    assert len(text) > 1_000_000
    assert scanner.count([text, "she"]).mentions == {"gender.women.she": 18_520}


def test_merging_equals_rescanning_for_every_split(scanner: Scanner) -> None:
    texts = random_texts(60, seed=1)
    whole = scanner.count(texts)
    for cut in range(0, 61, 7):
        assert scanner.count(texts[:cut]) + scanner.count(texts[cut:]) == whole
    assert Counts.from_json(whole.to_json()) == whole


def test_counts_of_different_patterns_do_not_merge(scanner: Scanner, tmp_path: Path) -> None:
    path = tmp_path / "patterns.toml"
    path.write_text("version = 1\n" + GROUP + 'a = ["she"]')
    with pytest.raises(DataError, match="different patterns"):
        scanner.count(["she"]) + Scanner(load_patterns(path)).count(["she"])


@pytest.mark.parametrize(
    "change", [{"num_texts": 0}, {"mentions": {"a": -1}}, {"texts": {"a": 1.5}}, {"digest": 1}, {"more": 1}]
)
def test_modified_counts_are_refused(scanner: Scanner, change: dict[str, Any]) -> None:
    data = json.loads(scanner.count(["she"]).to_json()) | change
    with pytest.raises(CorruptError, match="not counts"):
        Counts.from_json(json.dumps(data))


def test_a_share_has_an_interval_and_too_few_texts_have_none(scanner: Scanner) -> None:
    counts = scanner.count(["she"] * 10 + ["table"] * 90)
    share = counts.share("gender.women")
    assert share == (10, 100)
    assert share.interval() == pytest.approx((0.05523, 0.17437), abs=1e-5)
    assert scanner.count(["she"] * 29).share("gender.women") is None


def test_labels_are_unknown_where_no_group_or_several_are_mentioned(scanner: Scanner) -> None:
    labels = scanner.labels(["she", "he and she", "table", "a man, his son", ""], "gender")
    assert labels == ["gender.women", None, None, "gender.men", None]
    with pytest.raises(DataError, match="no dimension 'sex'"):
        scanner.labels(["she"], "sex")


def test_reports_scan_only_what_is_new_or_changed(scanner: Scanner) -> None:
    texts, ledger = random_texts(1000, seed=2), Ledger(scanner, block_texts=100)
    for size in range(100, 1001, 100):
        assert ledger.report(texts[:size]) == scanner.count(texts[:size])
    assert ledger.num_scanned == 1000
    texts[450] = "she, she"
    assert ledger.report(texts) == scanner.count(texts)
    assert ledger.num_scanned == 1100
    texts[450:452] = ["she, s", "he"]  # the same characters in other texts
    ledger.report(texts)
    texts[450:452] = ["she, ", "she"]
    assert ledger.report(texts) == scanner.count(texts)
