"""The loss counts on what the assistant says, and no message can pass for another role."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.core.errors import DataError
from hasten.recipes.dialogue.stages import convert_stages, open_stages
from hasten.recipes.dialogue.tokens import (
    END,
    ROLE_TOKENS,
    SPECIAL,
    OwnTokens,
    TemplateTokens,
    Turns,
    load_tokens,
    texts_of,
    tokenize_stages,
)

TEXTS = ["I cannot sleep at night.", "How long has that been so?", "For some weeks, I think.", "Thank you for telling me."]
TURNS = Turns(["system", "user", "assistant", "user", "assistant"], ["Be kind.", *TEXTS])


@pytest.fixture(scope="module")
def own() -> OwnTokens:
    return OwnTokens.train(TEXTS * 20, num_tokens=400)


def parts(ids: Any, mask: Any, wanted: int) -> list[list[int]]:
    """Return the runs of tokens whose mask has a value."""
    runs: list[list[int]] = [[]]
    for token, one in zip(ids.tolist(), mask.tolist(), strict=True):
        if one == wanted:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def test_the_mask_covers_content_and_end_of_the_assistant_only(own: OwnTokens) -> None:
    (made,) = own.encode([TURNS])
    assert made.ids.dtype == np.int32
    assert made.mask.dtype == np.uint8
    heard = parts(made.ids, made.mask, 1)
    assert own.decode(heard) == [TEXTS[1] + "<|end|>", TEXTS[3] + "<|end|>"]
    assert all(run[-1] == SPECIAL.index(END) for run in heard)
    roles = [SPECIAL.index(ROLE_TOKENS[role]) for role in TURNS.roles]
    assert [token for token in made.ids.tolist() if token in roles] == roles
    assert made.mask[np.isin(made.ids, roles)].sum() == 0


@settings(max_examples=50, deadline=None)
@given(texts=st.lists(st.text(min_size=1), min_size=1, max_size=4), word=st.sampled_from(SPECIAL))
def test_every_text_survives_and_cannot_change_roles(own: OwnTokens, texts: list[str], word: str) -> None:
    contents = [f"{text}{word}" for text in texts]
    roles = [("assistant", "user")[number % 2] for number in range(len(texts))]
    (made,) = own.encode([Turns(roles, contents)])
    assert own.decode(parts(made.ids, made.mask, 1)) == [f"{text}<|end|>" for text in contents[::2]]
    assert (made.ids == SPECIAL.index(END)).sum() == len(texts)
    assert (made.ids < len(SPECIAL)).sum() == 2 * len(texts)


def test_a_saved_folder_gives_the_same_tokens_here_and_in_transformers(own: OwnTokens, tmp_path: Path) -> None:
    own.save(tmp_path)
    (want,), (loaded,) = own.encode([TURNS]), load_tokens(tmp_path).encode([TURNS])
    assert isinstance(load_tokens(tmp_path), OwnTokens)
    pytest.importorskip("transformers")
    theirs = TemplateTokens(tmp_path)
    (templated,) = theirs.encode([TURNS])
    for made in (loaded, templated):
        assert made.ids.tolist() == want.ids.tolist()
        assert made.mask.tolist() == want.mask.tolist()
    assert (theirs.num_tokens, theirs.pad) == (own.num_tokens, own.pad)
    for word in SPECIAL:
        with pytest.raises(DataError, match="conversation 1, message 2 contains the text of a special token") as raised:
            theirs.encode([TURNS, Turns(["user", "assistant"], ["xyzzy", f"xyzzy{word}"])])
        assert "xyzzy" not in str(raised.value)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    refusing = "{{ raise_exception(messages[0]['content']) }}{% generation %}{% endgeneration %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": refusing}))
    with pytest.raises(DataError, match="refuses conversation 0") as raised:
        load_tokens(tmp_path).encode([Turns(["user"], ["xyzzy"])])
    assert "xyzzy" not in str(raised.value)
    assert raised.value.__cause__ is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": "{{ messages }}"}))
    with pytest.raises(DataError, match="does not mark what the assistant says"):
        load_tokens(tmp_path)


def test_unusable_folders_and_sizes_are_refused(own: OwnTokens, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no readable tokenizer_config\.json"):
        load_tokens(tmp_path)
    own.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match="is not a file of the tokenizers library"):
        load_tokens(tmp_path)
    with pytest.raises(DataError, match="num_tokens must be at least 261"):
        OwnTokens.train(TEXTS, num_tokens=260)


def test_stages_become_stores_of_tokens(own: OwnTokens, tmp_path: Path) -> None:
    records = [
        {
            "id": n,
            "messages": [{"role": r, "content": f"{c} {n}"} for r, c in zip(*TURNS, strict=True)],
            "metadata": {"stage": s},
        }
        for n, s in enumerate(["b", "a", "b"])
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    convert_stages(tmp_path / "a.jsonl", tmp_path / "s", stages=("b", "a"), processes=1)
    assert list(texts_of(open_stages(tmp_path / "s")["a"])) == [f"{content} 1" for content in TURNS.contents]
    tokenize_stages(tmp_path / "s", tmp_path / "t", own)
    stores = open_stages(tmp_path / "t")
    assert {stage: len(store) for stage, store in stores.items()} == {"b": 2, "a": 1}
    row = stores["b"][1]
    (want,) = own.encode([Turns(TURNS.roles, [f"{content} 2" for content in TURNS.contents])])
    assert (row["conversation_id"], row["tokens"], row["loss_mask"]) == ("2", want.ids.tolist(), want.mask.tolist())
