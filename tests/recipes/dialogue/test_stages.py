"""Each stage of the curriculum has a store of its own; the order of the stages is kept."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from hasten.core.errors import DataError
from hasten.data import Store, StoreWriter
from hasten.data.convert.job import convert
from hasten.recipes.dialogue.stages import STAGES, convert_stages, open_stages


def line(number: int, stage: str | None, **more: Any) -> str:
    messages = [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": f"answer {number}"}]
    return json.dumps({"id": number, "messages": messages, "metadata": {"stage": stage} if stage else {}, **more}) + "\n"


def test_stages_are_opened_in_the_order_of_the_curriculum(tmp_path: Path) -> None:
    wanted = [STAGES[number % 3 + 1] for number in range(5_000)]
    text = "".join(line(number, stage) for number, stage in enumerate(wanted))
    (tmp_path / "a.jsonl").write_text(text + line(0, None, messages=[{"role": "user", "content": " "}]))
    result = convert_stages(tmp_path / "a.jsonl", tmp_path / "s", processes=1)
    assert (result.num_records, result.num_bad) == (5_000, 1)
    assert result.quarantine is not None
    assert result.quarantine.parent == tmp_path / "s" / "quarantine"
    assert stat.S_IMODE(result.quarantine.stat().st_mode) == 0o600
    (tmp_path / "s" / "README").write_text("a file next to the stores")
    stores = open_stages(tmp_path / "s")
    assert tuple(stores) == STAGES[1:4]
    for stage, store in stores.items():
        assert store.take(range(len(store)), ["conversation_id"])["conversation_id"].to_pylist() == [
            str(number) for number, name in enumerate(wanted) if name == stage
        ]
        assert set(store.take(range(len(store)), ["stage"])["stage"].to_pylist()) == {stage}
    assert {path.name for path in (tmp_path / "s").iterdir()} == {*stores, "quarantine", "README"}
    with pytest.raises(DataError, match="already contains the stages therapeutic_expertise, edge_case_stress"):
        convert_stages(tmp_path / "a.jsonl", tmp_path / "s", processes=1)


def test_conversations_of_no_stage_are_refused_or_get_the_default(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line(1, None) + line(2, "second") + line(3, None))
    with pytest.raises(DataError, match="conversations without a stage in their metadata: 2"):
        convert_stages(tmp_path / "a.jsonl", tmp_path / "s", stages=("first", "second"), processes=1)
    with pytest.raises(DataError, match=r"the stage 'second' .conversations: 1. is none of first, third"):
        convert_stages(tmp_path / "a.jsonl", tmp_path / "s", stages=("first", "third"), default="first", processes=1)
    assert list((tmp_path / "s").iterdir()) == []
    for name in ("../a", "quarantine", ""):
        with pytest.raises(DataError, match=f"{name!r} cannot be the name of a stage"):
            convert_stages(tmp_path / "a.jsonl", tmp_path / "s", stages=("first", name))
    with pytest.raises(DataError, match="contains no stages"):
        open_stages(tmp_path / "s")
    convert_stages(tmp_path / "a.jsonl", tmp_path / "s", stages=("second", "first"), default="first", processes=1)
    stores = open_stages(tmp_path / "s")
    assert {name: len(store) for name, store in stores.items()} == {"second": 1, "first": 2}
    assert list(stores) == ["second", "first"]
    assert Store(tmp_path / "s" / "first")[1]["stage"] == "first"


def test_a_run_that_was_stopped_while_publishing_is_done_again(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line(1, "first") + line(2, "second"))
    convert(tmp_path / "a.jsonl", tmp_path / "s" / ".all", format="conversations", processes=1)
    with StoreWriter(tmp_path / "s" / "second", provenance={"stage_number": 1}) as writer:
        writer.write({"conversation_id": ["left over"]})
    convert_stages(tmp_path / "a.jsonl", tmp_path / "s", stages=("first", "second"), processes=1)
    stores = open_stages(tmp_path / "s")
    assert {name: (len(store), store[0]["conversation_id"]) for name, store in stores.items()} == {
        "first": (1, "1"),
        "second": (1, "2"),
    }
    assert not (tmp_path / "s" / ".all").exists()
