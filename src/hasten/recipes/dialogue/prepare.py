"""Prepare conversations for training: stages, a tokenizer, and tokens with a held-out part.

    prepare("conversations.jsonl", "prepared")

writes `prepared/text` (a store per stage), `prepared/tokenizer`, and the tokens in `prepared/train` and `prepared/valid`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data import Store
from hasten.data.convert.job import Result
from hasten.data.private.plan import PrivateRows
from hasten.recipes.dialogue.stages import STAGES, convert_stages, open_stages
from hasten.recipes.dialogue.tokens import ChatTokens, OwnTokens, load_tokens, texts_of, tokenize_stages

TEXT, TOKENIZER, TRAIN, VALID = "text", "tokenizer", "train", "valid"
"""Parts of a prepared folder."""


def prepare(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    stages: Sequence[str] = STAGES,
    default: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    num_tokens: int = 8192,
    valid_frac: float = 0.1,
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
        conversion: Further arguments of `convert_stages`. What `private` encrypts is read as the role `owner`.

    Returns:
        The result of the conversion.

    Raises:
        DataError: As `convert_stages`; or the folder is prepared already, or nothing is left to train on or to hold out.
    """
    target = Path(folder)
    if not 0 < valid_frac < 1:
        raise DataError(f"valid_frac must be between 0 and 1, not {valid_frac}.")
    if (target / TRAIN).exists() or (target / VALID).exists():
        raise DataError(f"{target} is prepared already: use another folder, or delete this one.")
    result = convert_stages(source, target / TEXT, stages=stages, default=default, **(conversion or {}))
    partial, private = target / ".parts", (conversion or {}).get("private")

    def opened(store: Store) -> Store | PrivateRows:
        return private.open(store, role="owner") if private else store

    try:
        _tokenize(target, partial, tokenizer, num_tokens, valid_frac, opens=opened)
    except DataError:
        shutil.rmtree(target / TEXT)
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return result


def _tokenize(
    target: Path,
    partial: Path,
    tokenizer: str | os.PathLike[str] | None,
    num_tokens: int,
    valid_frac: float,
    *,
    opens: Callable[[Store], Store | PrivateRows],
) -> None:
    tokens: ChatTokens
    if tokenizer is None:
        texts = (text for store in open_stages(target / TEXT).values() for text in texts_of(opens(store)))
        tokens = OwnTokens.train(texts, num_tokens=num_tokens)
        tokens.save(partial / TOKENIZER)
    else:
        tokens = load_tokens(tokenizer)
        shutil.copytree(tokenizer, partial / TOKENIZER)
    for part, held_out in ((TRAIN, False), (VALID, True)):
        tokenize_stages(target / TEXT, partial / part, tokens, keep=_part(valid_frac, held_out=held_out), opens=opens)
        if not (partial / part).exists():
            what = "is held out" if held_out else "is left to train on"
            raise DataError(f"of so few conversations, none {what} at valid_frac {valid_frac:g}: give more.")
    shutil.rmtree(target / TOKENIZER, ignore_errors=True)
    for part in (TOKENIZER, VALID, TRAIN):
        (partial / part).rename(target / part)


def _part(valid_frac: float, *, held_out: bool) -> Callable[[pa.RecordBatch], list[bool]]:
    def keep(block: pa.RecordBatch) -> list[bool]:
        names = zip(block.column("persona_id").to_pylist(), block.column("conversation_id").to_pylist(), strict=True)
        return [(_draw(person or name) < valid_frac) == held_out for person, name in names]

    return keep


def _draw(name: str) -> float:
    """Return a number from 0 to 1 that depends on the name alone."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) / 2**64
