"""The dialogue jobs in the real training loop: packed and padded forms learn the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F  # noqa: N812  the usual name

from hasten.core.errors import DataError, JobError
from hasten.core.job import check_job
from hasten.core.packing import Packing
from hasten.recipes.dialogue import DialogueJob, NaiveDialogueJob, NaivePreferenceJob, PreferenceJob
from hasten.recipes.dialogue.model import open_model, packed_logits, small_model
from hasten.recipes.dialogue.prepare import TOKENIZER
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.validate import HeldOut

CPU = torch.device("cpu")
SMALL = {"width": 32, "depth": 1, "heads": 2, "row_tokens": 256, "batch_size": 2, "rate": 3e-3}


def job_of(kind: type[DialogueJob], prepared: Path, **settings: Any) -> Any:
    """Return a small job on the prepared folder."""
    made = type("Mine", (kind,), {"prepared": str(prepared), **SMALL, **settings})()
    check_job(made)
    return made


@pytest.fixture(scope="module")
def start(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a file of weights to start preference training from."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("start") / "model.pt"
    torch.save(job_of(DialogueJob, prepared).model().state_dict(), path)
    return str(path)


@pytest.mark.parametrize("settings", [{}, {"rank": 2}], ids=["full", "lora"])
def test_both_forms_train_the_same_mathematics(prepared: Path, settings: dict[str, Any]) -> None:
    losses, held = {}, {}
    for kind in (NaiveDialogueJob, DialogueJob):
        loop = Loop(build(job_of(kind, prepared, **settings), device=CPU))
        loop.run(6)
        loop.close()
        losses[kind], held[kind] = loop.losses, HeldOut(loop.live).measure()
    assert losses[DialogueJob] == pytest.approx(losses[NaiveDialogueJob], rel=1e-5)
    assert held[DialogueJob] == pytest.approx(held[NaiveDialogueJob], rel=1e-5)
    assert held[DialogueJob]["perplexity"] == pytest.approx(math.exp(held[DialogueJob]["loss"]), rel=1e-6)


@pytest.mark.parametrize("settings", [{}, {"rank": 2}], ids=["full", "lora"])
def test_both_forms_of_preference_training_are_the_same_mathematics(
    prepared: Path, start: str, settings: dict[str, Any]
) -> None:
    losses, held = {}, {}
    for kind in (NaivePreferenceJob, PreferenceJob):
        loop = Loop(build(job_of(kind, prepared, start=start, num_updates=5, **settings), device=CPU))
        loop.run(5)
        loop.close()
        losses[kind], held[kind] = loop.losses, HeldOut(loop.live).measure()
    assert losses[PreferenceJob][0] == pytest.approx(math.log(2), rel=1e-5)  # the model is the reference
    assert losses[PreferenceJob] == pytest.approx(losses[NaivePreferenceJob], rel=1e-4)
    assert held[PreferenceJob]["accuracy"] == held[NaivePreferenceJob]["accuracy"]
    assert held[PreferenceJob]["margin"] == pytest.approx(held[NaivePreferenceJob]["margin"], rel=1e-3, abs=1e-4)


def test_the_loss_of_a_pair_is_that_of_the_paper(prepared: Path, start: str) -> None:
    job = job_of(PreferenceJob, prepared, start=start, beta=0.3)
    pairs, reference, model = job.train_data(), job.starting_model(), job.model()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.02)

    def answer(network: Any, ids: Any, prompt: int) -> torch.Tensor:
        row = torch.from_numpy(ids)[None]
        chances = network(input_ids=row, use_cache=False).logits[0, :-1].log_softmax(-1)
        chance: torch.Tensor = chances.gather(1, row[0, 1:, None])[prompt - 1 :].sum()
        return chance

    batch = [pairs[row] for row in range(3)]
    want = []
    with torch.no_grad():
        for pair in batch:
            gains = [answer(model, ids, pair.prompt) - answer(reference, ids, pair.prompt) for ids in pair[:2]]
            want.append(-F.logsigmoid(0.3 * (gains[0] - gains[1])))
        got = job.loss(model, job.collate(batch))
    assert (got.total / got.weight).item() == pytest.approx(torch.stack(want).mean().item(), rel=1e-4)


def test_probabilities_of_the_start_are_kept_and_belong_to_their_weights(
    prepared: Path, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HASTEN_CACHE_DIR", str(tmp_path))
    before = sorted(prepared.rglob("*"))
    first = job_of(PreferenceJob, prepared, start=start).train_data()[0].reference
    (kept,) = tmp_path.iterdir()
    monkeypatch.setattr(PreferenceJob, "_reference", lambda *_: pytest.fail("it is computed again"))
    assert np.array_equal(job_of(PreferenceJob, prepared, start=start).train_data()[0].reference, first)
    assert sorted(prepared.rglob("*")) == before
    monkeypatch.undo()
    monkeypatch.setenv("HASTEN_CACHE_DIR", str(tmp_path))
    changed = torch.load(start, weights_only=True)
    changed["model.embed_tokens.weight"] = changed["lm_head.weight"] = changed["lm_head.weight"] * 2
    torch.save(changed, tmp_path / "other.pt")
    other = job_of(PreferenceJob, prepared, start=str(tmp_path / "other.pt"))
    assert not np.allclose(other.train_data()[0].reference, first)
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2
    assert kept.exists()


def test_of_a_long_prompt_the_beginning_is_left_out(prepared: Path, start: str) -> None:
    whole, cut = (job_of(PreferenceJob, prepared, start=start, row_tokens=n).pairs("train") for n in (4096, 128))
    long = [row for row in range(len(whole)) if len(whole[row].chosen) > 128]
    assert long
    for row in long:
        there, here = whole[row], cut[row]
        assert max(len(here.chosen), len(here.rejected)) <= 128
        answer = there.chosen[there.prompt :]
        assert np.array_equal(here.chosen[here.prompt :], answer[: len(here.chosen) - here.prompt])
        assert np.array_equal(here.chosen[: here.prompt], here.rejected[: here.prompt])


def test_a_changed_neighbour_changes_no_other_document() -> None:
    torch.manual_seed(0)
    model = small_model(100, width=32, depth=2, heads=2).eval()
    packing, where = Packing.of([5, 9, 4]), torch.arange(18)
    ids = torch.randint(100, (1, 18))
    changed = ids.clone()
    changed[0, 5:14] = (changed[0, 5:14] + 1) % 100
    with torch.no_grad():
        before, after = (packed_logits(model, row, packing, where) for row in (ids, changed))
        alone = torch.cat([model(input_ids=part, use_cache=False).logits[0] for part in ids.split([5, 9, 4], 1)])
        masked = model(input_ids=ids, position_ids=packing.positions[None], use_cache=False).logits[0]
    same = torch.ones(18, dtype=torch.bool)
    same[5:14] = False
    assert torch.equal(before[same], after[same])
    assert not torch.allclose(before[~same], after[~same])
    assert torch.allclose(before, alone, atol=1e-5)
    assert torch.allclose(masked, alone, atol=1e-5)  # without `packing`, Transformers' own mask keeps documents apart


def test_padding_on_either_side_changes_nothing() -> None:
    torch.manual_seed(0)
    model = small_model(100, width=32, depth=2, heads=2).eval()
    ids = torch.randint(100, (1, 6))
    with torch.no_grad():
        alone = model(input_ids=ids, use_cache=False).logits[0]
        for left, right in ((0, 3), (3, 0)):
            attention = F.pad(torch.ones(1, 6, dtype=torch.int64), (left, right))
            positions = (attention.cumsum(1) - 1).clamp(min=0)
            row = F.pad(ids, (left, right), value=7)
            logits = model(input_ids=row, attention_mask=attention, position_ids=positions, use_cache=False).logits
            assert torch.allclose(logits[0, left : left + 6], alone, atol=1e-5)


def test_a_model_of_the_user_and_adapters_on_it(prepared: Path, tmp_path: Path) -> None:
    job = job_of(DialogueJob, prepared)
    torch.manual_seed(1)
    model: Any = small_model(job.tokens.num_tokens, width=32, depth=1, heads=2)
    model.save_pretrained(tmp_path / "mine")
    own = job_of(DialogueJob, prepared, chat_model=str(tmp_path / "mine"), rank=2)
    rows = job.collate([job.train_data()[row] for row in range(2)])
    adapted = own.model()
    assert own.loss(adapted, rows).total.item() == pytest.approx(job.loss(model, rows).total.item(), rel=1e-6)
    trained = [name for name, weight in adapted.named_parameters() if weight.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    save_file({"model.embed_tokens.weight": torch.zeros(1)}, tmp_path / "wrong.safetensors")
    with pytest.raises(JobError):
        job_of(DialogueJob, prepared, start=str(tmp_path / "wrong.safetensors")).model()
    model = small_model(100, width=32, depth=1, heads=2)
    model.save_pretrained(tmp_path / "few")
    with pytest.raises(JobError, match="knows 100 tokens, but the conversations were prepared with a tokenizer of 400"):
        job_of(DialogueJob, prepared, chat_model=str(tmp_path / "few")).model()


def test_what_does_not_fit_is_refused(prepared: Path, tmp_path: Path, start: str) -> None:
    with pytest.raises(JobError, match="is not prepared: call"):
        job_of(DialogueJob, tmp_path).train_data()
    with pytest.raises(JobError, match="has nothing to start from"):
        job_of(PreferenceJob, prepared).model()
    with pytest.raises(JobError, match="the width 30 must be a multiple"):
        job_of(DialogueJob, prepared, width=30).model()
    with pytest.raises(JobError, match="the rank of adapters must be at least 1, not 0"):
        job_of(DialogueJob, prepared, rank=0).model()
    with pytest.raises(DataError, match="is no folder"):
        open_model(tmp_path / "none")
    (tmp_path / TOKENIZER).mkdir()
    with pytest.raises(DataError, match="no chat model that Transformers can load"):
        open_model(tmp_path / TOKENIZER)
    with pytest.raises(DataError, match="has no pairs"):
        job_of(PreferenceJob, prepared, start=start, stages=["foundation"]).pairs("train")


def test_the_rows_stay_in_the_order_of_the_curriculum(prepared: Path) -> None:
    job = job_of(DialogueJob, prepared, passes=2)
    live = build(job, device=CPU)
    seen = [index for batch in live.batches(0) for index in batch]
    assert seen == sorted(seen)
    packed = job.train_data()
    stages = [int(packed.pieces(row)[0, 0]) for row in seen]
    assert stages == sorted(stages)
