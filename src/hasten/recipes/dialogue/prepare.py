"""Prepare conversations for training: stages, a tokenizer, and tokens with a held-out part.

    prepare("conversations.jsonl", "prepared")

writes `prepared/text` (a store per stage), `prepared/tokenizer`, and the tokens in `prepared/train` and `prepared/valid`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hasten.core.doing import doing
from hasten.core.errors import DataError
from hasten.data import Store, StoreWriter
from hasten.data.convert.job import Result
from hasten.data.private.plan import PrivatePlan, PrivateRows
from hasten.data.private.vault import mark
from hasten.recipes.dialogue.stages import STAGES, convert_stages, open_stages
from hasten.recipes.dialogue.tokens import ChatTokens, OwnTokens, load_tokens, texts_of, tokenize_stages
from hasten.recipes.dialogue.voice.embedding import embedding_of, trained_embedder

TEXT, TOKENIZER, TRAIN, VALID, VOICES = "text", "tokenizer", "train", "valid", "voices"
"""Parts of a prepared folder."""
_BEGUN = ".preparing"
"""File in a folder whose preparation has not ended."""


def prepare(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    stages: Sequence[str] = STAGES,
    default: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    num_tokens: int = 8192,
    valid_frac: float = 0.1,
    voices: str | os.PathLike[str] | None = None,
    private: PrivatePlan | None = None,
    conversion: Mapping[str, Any] | None = None,
) -> Result:
    """Convert and tokenize conversations. When it was interrupted, call it again with the same arguments.

    A person (`persona_id`), or else a conversation, is held out as a whole, chosen by a hash of its name.

    Args:
        source: A file of conversations, or a folder of such files; see `hasten.data.conversation`.
        folder: New folder.
        stages: Names of the stages, in the order of training.
        default: Stage of the conversations that name none; None refuses them.
        tokenizer: Folder of a tokenizer with a chat template; None trains one on the texts.
        num_tokens: Size of the vocabulary of a tokenizer trained here.
        valid_frac: Share held out, between 0 and 1.
        voices: Folder of recordings that `voice_signature` names. Their embeddings are written to `folder/voices`, by a
            network that is trained on these recordings; see `trained_embedder`.
        private: Replace identifiers, and encrypt text, tokens and embeddings, as this plan says. The tokenizer is not
            encrypted.
        conversion: Further arguments of `convert_stages`.

    Returns:
        The result of the conversion.

    Raises:
        DataError: As `convert_stages`; or the folder is prepared already; or nothing is left to train on or to hold out; or
            a recording is outside its folder, or cannot be used.
    """
    target = Path(folder)
    if not 0 < valid_frac < 1:
        raise DataError(f"valid_frac must be between 0 and 1, not {valid_frac}.")
    begun = _begin(target)
    doing("checking and converting the conversations")
    result = convert_stages(source, target / TEXT, stages=stages, default=default, private=private, **(conversion or {}))
    partial = target / ".parts"
    try:
        tokens = _tokenizer(target, partial / TOKENIZER, tokenizer, num_tokens, private)
        for part, held_out in ((TRAIN, False), (VALID, True)):
            doing(f"tokenizing what is {'held out' if held_out else 'trained on'}")
            keep = _part(valid_frac, held_out=held_out)
            tokenize_stages(target / TEXT, partial / part, tokens, keep=keep, private=private)
            _check_any(partial / part, "is held out" if held_out else "is left to train on", valid_frac)
        if voices is not None:
            _write_voices(target / TEXT, partial / VOICES, Path(voices), private)
        for name in (TOKENIZER, *([VOICES] if voices is not None else []), VALID, TRAIN):
            shutil.rmtree(target / name, ignore_errors=True)
            (partial / name).rename(target / name)
    except DataError:
        shutil.rmtree(target / TEXT)
        begun.unlink()
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    begun.unlink()
    return result


def _begin(target: Path) -> Path:
    """Mark a folder as not yet prepared, and remove what an earlier call that was stopped has made; return the mark.

    Raises:
        DataError: The folder is prepared already, or has texts that are not of such a call.
    """
    begun, text = target / _BEGUN, target / TEXT
    if begun.exists():
        for name in (".parts", TOKENIZER, VOICES, VALID, TRAIN):
            shutil.rmtree(target / name, ignore_errors=True)
        if text.exists() and not (text / ".all").exists():  # else its conversion continues
            shutil.rmtree(text)
    elif (target / TRAIN).exists() or (target / VALID).exists():
        raise DataError(f"{target} is prepared already: use another folder, or delete this one.")
    elif text.exists():
        raise DataError(f"{text} exists already: use another folder.")
    target.mkdir(parents=True, exist_ok=True)
    begun.touch()
    return begun


def _check_any(folder: Path, what: str, valid_frac: float) -> None:
    if not folder.exists():
        raise DataError(f"of so few conversations, none {what} at valid_frac {valid_frac:g}: give more, or change it.")


def _tokenizer(
    target: Path, folder: Path, given: str | os.PathLike[str] | None, num_tokens: int, private: PrivatePlan | None
) -> ChatTokens:
    if given is not None:
        shutil.copytree(given, folder)
        return load_tokens(folder)
    doing("training a tokenizer")
    tokens = OwnTokens.train(
        (text for reader in _readers(target / TEXT, private) for text in texts_of(reader)), num_tokens=num_tokens
    )
    tokens.save(folder)
    return tokens


def _readers(folder: Path, private: PrivatePlan | None) -> Iterator[Store | PrivateRows]:
    for store in open_stages(folder).values():
        yield private.open(store, role="owner") if private else store


def _write_voices(text: Path, folder: Path, recordings: Path, private: PrivatePlan | None) -> None:
    """Write the embedding of each conversation's recording: `conversation_id`, `persona_id` and `embedding`."""
    doing("training a network on the voices")
    embedder, settings = trained_embedder(recordings)
    doing("computing the embeddings of the voices")
    vault, whole = private.vault() if private else None, recordings.resolve()
    rows: list[tuple[str, str | None, Any]] = []
    for reader in _readers(text, private):
        taken = reader.take(range(len(reader)), ["conversation_id", "persona_id", "voice_signature"])
        for name, person, voice in zip(*map(_plain, taken.values()), strict=True):
            if voice is None:
                continue
            path = (whole / voice).resolve()
            if not path.is_relative_to(whole) or not path.is_file():
                raise DataError(f"conversation {name}: its voice_signature names no file in {recordings}.")
            rows.append((name, person, embedding_of(path, embedder, settings=settings)))
    if not rows:
        raise DataError(f"no conversation names a recording in {recordings}: give its path there as voice_signature.")
    names, persons, embeddings = zip(*rows, strict=True)
    columns = {
        "conversation_id": pa.array(names, pa.string()),
        "persona_id": pa.array(persons, pa.string()),
        "embedding": np.stack(embeddings),
    }
    facts = mark(["embedding"], "persona_id") if vault else {}
    with StoreWriter(folder, provenance=facts) as writer:
        writer.write(vault.sealed(columns, ["embedding"], person="persona_id", are_hashes=True) if vault else columns)


def _plain(column: Any) -> list[Any]:
    return column if isinstance(column, list) else column.to_pylist()


def _part(valid_frac: float, *, held_out: bool) -> Callable[[pa.RecordBatch], list[bool]]:
    def keep(block: pa.RecordBatch) -> list[bool]:
        names = zip(block.column("persona_id").to_pylist(), block.column("conversation_id").to_pylist(), strict=True)
        return [(_draw(person or name) < valid_frac) == held_out for person, name in names]

    return keep


def _draw(name: str) -> float:
    """Return a number from 0 to 1 that depends on the name alone."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) / 2**64
