"""What persons said is in no file and no output of a private conversion and training run, whatever goes wrong."""

from __future__ import annotations

import base64
import gzip
import io
import json
import zipfile
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from hasten.core.errors import HastenError
from hasten.data import Store, StoreWriter
from hasten.data.private.plan import PrivatePlan
from hasten.data.private.vault import Vault
from hasten.monitor import catalogue
from hasten.recipes.dialogue.prepare import prepare
from hasten.recipes.dialogue.stages import open_stages
from hasten.recipes.dialogue.tokens import load_tokens
from tests.cli.called import called
from tests.data.test_conversations import BAD, WORD

PLANTED = {
    "name": "Quillfeather",
    "mail": "zq77@quillmail.example",
    "phone": "555-731-4242",
    "words": "an uncle with wombats",
    "answer": "those wombats again",
    "rejected": "wombats be damned",
    "person": "persona-vexillum",
    "conversation": "conv-gossamer",
    "voice": "voice-bassoon",
    "key": "favourite-kazoo",
    "bad": WORD,
}
STAGE = "gobbledegook-stage"
"""A stage that is none of the curriculum."""
JOB = """
from pathlib import Path

from hasten.recipes.dialogue import DialogueJob

class Counsel(DialogueJob):
    private = "private" if Path("private").exists() else None
    prepared, width, depth, heads, row_tokens, batch_size, bias_counts = "prepared", 32, 1, 2, 256, 2, True
"""


def talk(number: int, person: str, **more: Any) -> str:
    said = (
        f"my name is Zephyrine {PLANTED['name']}, mail {PLANTED['mail']} or {PLANTED['phone']}. "
        if number % 5 == 0
        else "Hello. "
    )
    messages = [
        {"role": "user", "content": said + (PLANTED["words"] if number == 10 else "I am sad today."), "timestamp": 1.6e9},
        {"role": "assistant", "content": PLANTED["answer"] if number == 10 else "I hear you. Tell me more."},
    ]
    record = {
        "conversation_id": f"{PLANTED['conversation']}-{number}",
        "messages": messages,
        "metadata": {"stage": "foundation", "persona_id": person, "voice_signature": PLANTED["voice"]},
        "rejected": PLANTED["rejected"] if number == 10 else "So what.",
        PLANTED["key"]: PLANTED["words"],
        **more,
    }
    return json.dumps(record) + "\n"


def files_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file below a folder, and what archives contain."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        name, data = str(path.relative_to(folder)), path.read_bytes()
        yield name, name.encode() + data
        if data.startswith(b"\x1f\x8b"):
            yield name, gzip.decompress(data)
        if zipfile.is_zipfile(io.BytesIO(data)):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                yield from ((f"{name}!{part}", archive.read(part)) for part in archive.namelist())


def forms_of(text: str) -> list[bytes]:
    """Return a text as it may occur in a file: plain, in UTF-16, in hexadecimal, or within base64."""
    plain = text.encode()
    shifted = (
        base64.b64encode(b"." * shift + plain)[-(-shift * 8 // 6) : (shift + len(plain)) * 8 // 6] for shift in range(3)
    )
    return [plain, text.encode("utf-16-le"), plain.hex().encode(), *shifted]


def found(*files: tuple[str, bytes]) -> set[tuple[str, str]]:
    """Return which planted texts are in which files."""
    planted = {what: forms_of(text) for what, text in {**PLANTED, "stage": STAGE}.items()}
    return {(name, what) for name, data in files for what, forms in planted.items() if any(form in data for form in forms)}


class Work:
    """Run commands in a folder, and keep what they and their processes print."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.printed, self._capfd = folder, list[tuple[str, bytes]](), capfd

    def hasten(self, *words: str, fails: bool = False) -> str:
        done = called(*words, cwd=self.folder)
        printed = "".join([done.stdout, done.stderr, *self._capfd.readouterr()])
        assert (done.returncode != 0) == fails, printed
        self.printed.append((" ".join(words), printed.encode()))
        return printed

    def raised(self, error: pytest.ExceptionInfo[HastenError]) -> None:
        self.printed.append(("an error", str(error.value).encode()))


@pytest.fixture
def work(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Work:
    (tmp_path / "work").mkdir()
    (tmp_path / "source").mkdir()
    people = [*(f"{PLANTED['person']}-{number}" for number in range(100))]
    good = [talk(number, people[number % 100]) for number in range(400)]
    (tmp_path / "source" / "good.jsonl").write_text("".join(good))
    bad = [line + "\n" for line, _, _ in BAD.values()] + [talk(500, people[0], metadata={"voice_signature": WORD})]
    (tmp_path / "source" / "mixed.jsonl").write_text("".join([*good, *bad]), encoding="utf-8")
    (tmp_path / "source" / "none.jsonl").write_text("".join(bad), encoding="utf-8")
    stage = {"stage": STAGE, "persona_id": people[0]}
    (tmp_path / "source" / "stage.jsonl").write_text("".join([*good, talk(600, people[0], metadata=stage)]))
    (tmp_path / "work" / "job.py").write_text(JOB)
    return Work(tmp_path / "work", capfd)


def prepared(work: Work, source: str, private: PrivatePlan | None) -> None:
    conversion: Any = {"max_bad_frac": 0.5, "processes": 1}
    settings: Any = {"num_tokens": 400, "valid_frac": 0.3, "default": "foundation", "private": private}
    prepare(work.folder.parent / "source" / source, work.folder / "prepared", conversion=conversion, **settings)


@pytest.fixture
def _bias_sampler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    point = EntryPoint("dialogue_bias", "hasten.recipes.dialogue.bias.sampler:BiasSampler", catalogue.SAMPLERS)
    monkeypatch.setattr(catalogue, "entry_points", lambda group: [point] if group == catalogue.SAMPLERS else [])
    catalogue.samplers.cache_clear()
    yield
    catalogue.samplers.cache_clear()


@pytest.mark.usefixtures("_bias_sampler")
def test_nothing_that_was_said_is_in_any_file_or_message(work: Work) -> None:
    work.hasten("data", "private", "private")
    plan = PrivatePlan.load(work.folder / "private")
    converts = ("--format", "conversations", "--private", "private", "--processes", "1", "--traceback")
    said = work.hasten("data", "convert", "../source/mixed.jsonl", "talks", *converts, "--max-bad", "0.2")
    assert "identifiers replaced, name: 80" in said
    assert f"{len(BAD) + 1} bad records" in said
    work.hasten("data", "convert", "../source/mixed.jsonl", "refused", *converts, "--max-bad", "0", fails=True)
    work.hasten("data", "convert", "../source/none.jsonl", "nothing", *converts, fails=True)
    work.hasten("data", "info", "talks", "--html", "talks.html", "--rows", "2")
    work.hasten("data", "verify", "talks")

    with pytest.raises(HastenError, match=r"a stage .conversations: 1. is none of") as raised:
        prepared(work, "stage.jsonl", plan)
    work.raised(raised)
    prepared(work, "mixed.jsonl", plan)
    work.hasten("run", "job.py:Counsel", "--out", "out", "--updates", "6", "--checkpoint-every", "3")
    work.hasten("runs", "list", "out")
    (run,) = [path.parent for path in (work.folder / "out").rglob("metrics*") if path.is_file()][:1]
    work.hasten("runs", "show", str(run), "--html", "run.html", "--json", "run.json")
    work.hasten("watch", "out", "--text", "--once")
    work.hasten("checkpoints", "export", str(run), "model.safetensors")

    tokens, stores = load_tokens(work.folder / "prepared" / "tokenizer"), open_stages(work.folder / "prepared" / "train")
    trained_on = plan.open(stores["foundation"], role="trainer").take(range(len(stores["foundation"])))["tokens"]
    learned = " ".join(tokens.decode(ids.tolist() for ids in trained_on))
    assert "my name is [name:" in learned
    assert not [what for what in ("name", "mail", "phone") if PLANTED[what] in learned]
    rows, talks = plan.open(Store(work.folder / "talks"), role="owner"), Store(work.folder / "talks")
    assert PLANTED["words"] in rows[10]["contents"][0]
    for role, columns in (("trainer", ["contents"]), ("stranger", None)):
        with pytest.raises(HastenError) as raised:
            plan.open(talks, role=role, columns=columns)
        work.raised(raised)
    swapped = talks.take(range(len(talks)))
    swapped["contents"] = swapped["contents"].take(list(range(len(talks)))[::-1])
    with StoreWriter(work.folder / "swapped", provenance=talks.manifest.provenance) as writer:
        writer.write(swapped)
    with pytest.raises(HastenError, match="row 0: contents was changed or moved") as raised:
        plan.open(Store(work.folder / "swapped"), role="owner").take([0])
    work.raised(raised)
    with pytest.raises(HastenError, match="open the vault that encrypted it") as raised:
        Vault.create(work.folder / "other", bytes(32)).take(talks, [0])
    work.raised(raised)
    (work.folder / "private" / "keys" / "master").write_text("00" * 32)
    work.hasten("data", "private", "private", fails=True)
    work.hasten("data", "convert", "../source/good.jsonl", "later", *converts, fails=True)
    log = work.folder / "private" / "audit.jsonl"
    log.write_bytes(log.read_bytes().replace(b"convert", b"nothing"))
    work.hasten("data", "convert", "../source/good.jsonl", "later", *converts, fails=True)

    files = list(files_of(work.folder))
    assert {"talks.html", "run.html", "run.json", "model.safetensors", "out/bias.json"} <= {name for name, _ in files}
    assert len(files) > 40
    assert found(*files, *work.printed) == set()


def test_without_a_plan_it_is_all_there(work: Work) -> None:
    """Show that the search of the other test finds what is there."""
    prepared(work, "mixed.jsonl", None)
    assert {what for name, what in found(*files_of(work.folder)) if name.startswith("prepared/text/foundation")} >= {
        *PLANTED
    } - {"bad"}
    assert {what for name, what in found(*files_of(work.folder)) if "quarantine" in name} >= {"bad"}
