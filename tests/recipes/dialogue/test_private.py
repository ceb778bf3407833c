"""Training on encrypted conversations with voices: nothing in the clear, and erased persons leave padding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hasten.core.errors import DataError, JobError
from hasten.data import Store
from hasten.data.private.plan import PrivatePlan
from hasten.recipes.dialogue import DialogueJob, NaiveDialogueJob, PreferenceJob
from hasten.recipes.dialogue.evaluation.of_job import _voices, held_out
from hasten.recipes.dialogue.prepare import TEXT, TRAIN, VOICES, prepare
from hasten.recipes.dialogue.stages import open_stages
from hasten.recipes.dialogue.synth import DrawnTalks, conversations
from hasten.train.build import build
from hasten.train.loop import Loop
from tests.recipes.dialogue.test_voice_embedding import PITCHES, draw_voice

SECRET = b"zzyzx"


class Made(NamedTuple):
    """A private folder."""

    folder: Path
    plan: PrivatePlan
    persons: list[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a prepared folder of encrypted conversations, each with a word that must not be found, and a recording."""
    path = tmp_path_factory.mktemp("private")
    (path / "voices").mkdir()
    for number, (name, (pitch, tilt)) in enumerate(PITCHES.items()):
        for take in range(6):
            draw_voice(path / "voices" / f"{take}_{name}_{take}.wav", pitch, tilt, 100 * number + take)
    names = [*PITCHES]
    records = list(conversations(DrawnTalks(count=80, seed=1)))
    for number, record in enumerate(records):
        record["messages"][0]["content"] += f" {SECRET.decode()}{number}"
        record["metadata"]["persona_id"] = f"person-{number:05d}"  # many, since a secret key draws who is held out
        record["metadata"]["voice_signature"] = f"{number % 6}_{names[number % 3]}_{number % 6}.wav"
    source = path / "talks.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    plan = PrivatePlan.create(path / "plan")
    settings: dict[str, Any] = {"num_tokens": 300, "valid_frac": 0.3, "conversion": {"processes": 1}}
    prepare(source, path / "prepared", private=plan, voices=path / "voices", **settings)
    return Made(path / "prepared", plan, [record["metadata"]["persona_id"] for record in records])


def job_of(kind: type[DialogueJob], made: Made, **settings: Any) -> Any:
    """Return a small job."""
    small = {"width": 16, "depth": 1, "heads": 2, "row_tokens": 256, "batch_size": 2}
    return type("Mine", (kind,), {"prepared": str(made.folder), "private": made.plan.folder, **small, **settings})()


def test_no_file_has_what_was_said_or_how_it_sounded(made: Made) -> None:
    files = [path for path in made.folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        content = path.read_bytes()
        assert SECRET not in content
        assert not any(person.encode() in content for person in made.persons)
    voices = made.plan.open(Store(made.folder / VOICES), role="owner").take(range(5), ["embedding"])["embedding"]
    assert np.allclose([np.linalg.norm(voice) for voice in voices], 1, atol=1e-3)
    assert not any(np.asarray(voice, np.float32).tobytes() in path.read_bytes() for path in files for voice in voices)
    with pytest.raises(DataError, match="role 'trainer' may not read embedding"):
        made.plan.open(Store(made.folder / VOICES), role="trainer", columns=["embedding"])


def test_it_trains_as_the_role_trainer_alone(made: Made, tmp_path: Path) -> None:
    job = job_of(DialogueJob, made)
    loop = Loop(build(job, device=torch.device("cpu")))
    loop.run(3)
    loop.close()
    assert np.isfinite(loop.losses).all()
    assert any(SECRET.decode() in text for text in job.texts(range(4)))
    torch.save(job.starting_model().state_dict(), tmp_path / "start.pt")
    prefer = job_of(PreferenceJob, made, start=str(tmp_path / "start.pt"))
    loop = Loop(build(prefer, device=torch.device("cpu")))
    loop.run(2)
    loop.close()
    assert np.isfinite(loop.losses).all()
    with pytest.raises(DataError, match="is encrypted: give the folder of its plan"):
        job_of(DialogueJob, made, private=None).train_data()
    with pytest.raises(JobError, match="in the clear: use DialogueJob"):
        job_of(NaiveDialogueJob, made).train_data()


def test_gates_read_what_the_roles_may_and_refuse_too_few_recordings(made: Made) -> None:
    with pytest.raises(JobError, match=r"voice consistency, .* are too few to decide; give at least 20"):
        job_of(DialogueJob, made).checks()
    rows = held_out(job_of(DialogueJob, made))
    assert sum(map(len, rows.values())) > 5
    voices = _voices(job_of(DialogueJob, made))
    assert len(voices) == len({made.plan.vault().name_of(person) for person in made.persons} & voices.keys()) > 10
    assert all(some.shape[1] == 64 for some in voices.values())


def test_of_an_erased_person_nothing_is_trained_on(made: Made) -> None:
    stores = open_stages(made.folder / TRAIN).values()
    trained = {name for store in stores for name in store.take(range(len(store)), ["persona_id"])["persona_id"].to_pylist()}
    person = next(person for person in made.persons if made.plan.vault().name_of(person) in trained)
    kept = job_of(DialogueJob, made).train_data()
    before = [row["ids"] for row in (kept[at] for at in range(len(kept)))]
    assert made.plan.vault().erase(person)
    erased = job_of(DialogueJob, made).train_data()
    after = [row["ids"] for row in (erased[at] for at in range(len(erased)))]
    changed = [at for at, (a, b) in enumerate(zip(before, after, strict=True)) if not torch.equal(a, b)]
    assert changed
    assert len(changed) < len(before)
    texts = made.plan.open(open_stages(made.folder / TEXT)["foundation"], role="owner").take(range(5), ["contents"])
    assert any(text is not None for text in texts["contents"])
