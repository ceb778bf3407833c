"""Turn conversations into tokens, with a mask that is 1 where the loss counts: on what the assistant says.

`OwnTokens` trains a byte-level BPE on the conversations and writes each message as role token, content, end token. The loss
counts on the content and the end token of the assistant, not on its role token. `TemplateTokens` uses a folder of
Transformers whose chat template marks the assistant's text with {% generation %}. Transformers can load the folders of both.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data import Store, StoreWriter
from hasten.data.private.plan import PrivatePlan, PrivateRows
from hasten.data.private.vault import SEALED, mark
from hasten.data.store.layout import BLOCK_ROWS
from hasten.recipes.dialogue.stages import open_stages
from hasten.recipes.needed import needed

PAD, END = "<|pad|>", "<|end|>"
ROLE_TOKENS = {role: f"<|{role}|>" for role in ("system", "user", "assistant")}
SPECIAL = (PAD, END, *ROLE_TOKENS.values())
"""Special tokens of `OwnTokens`; their numbers are 0 to 4."""
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""The template of `OwnTokens`, for Transformers."""
_FILE, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_SMALLEST = 256 + len(SPECIAL)
_SEALED = ("tokens", "loss_mask")
"""Columns that are encrypted with `private`."""


class Turns(NamedTuple):
    """Hold the messages of a conversation.

    Attributes:
        roles: `system`, `user` or `assistant`.
        contents: Text of each message.
    """

    roles: Sequence[str]
    contents: Sequence[str]


class Tokenized(NamedTuple):
    """Hold the tokens of a conversation.

    Attributes:
        ids: Tokens, int32 `[length]`.
        mask: 1 where the assistant speaks, otherwise 0, uint8 `[length]`.
    """

    ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.uint8]


class ChatTokens(ABC):
    """Turn conversations into tokens and a loss mask.

    Attributes:
        num_tokens: Size of the vocabulary.
        pad: Token for padding.
    """

    num_tokens: int
    pad: int

    @abstractmethod
    def decode(self, conversations: Iterable[Iterable[int]]) -> list[str]:
        """Return the text of the tokens of each conversation, with special tokens between the messages."""

    @abstractmethod
    def encode(self, conversations: Sequence[Turns]) -> list[Tokenized]:
        """Return the tokens of each conversation.

        Raises:
            DataError: A conversation cannot be written with the template. Its number is given, never its text.
        """


class OwnTokens(ChatTokens):
    """Use a tokenizer that was trained here, and the template of this module.

    The text of a special token within a message is encoded as plain text, so no message can end its turn or change its role.

    Args:
        tokenizer: A `tokenizers.Tokenizer` whose first tokens are `SPECIAL`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True
        self.num_tokens, self.pad = tokenizer.get_vocab_size(), 0

    @classmethod
    def train(cls, texts: Iterable[str], *, num_tokens: int = 8192) -> Self:
        """Train a byte-level BPE.

        Args:
            texts: Texts of messages, read once.
            num_tokens: Largest size of the vocabulary, at least 261: all bytes and the special tokens.

        Raises:
            DataError: `num_tokens` is too small.
            MachineError: The package tokenizers is not installed.
        """
        if num_tokens < _SMALLEST:
            raise DataError(f"num_tokens must be at least {_SMALLEST}, all bytes and the special tokens, not {num_tokens}.")
        lib = needed("tokenizers", extra="dialogue")
        tokenizer = lib.Tokenizer(lib.models.BPE())
        tokenizer.pre_tokenizer = lib.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = lib.decoders.ByteLevel()
        trainer = lib.trainers.BpeTrainer(
            vocab_size=num_tokens,
            special_tokens=list(SPECIAL),
            initial_alphabet=sorted(lib.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the tokenizer and its template to a folder, for `load_tokens` and for Transformers."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": TEMPLATE,
            "pad_token": PAD,
            "eos_token": END,
            "clean_up_tokenization_spaces": False,
        }
        self._tokenizer.save(str(path / _FILE))
        (path / _CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")

    def encode(self, conversations: Sequence[Turns]) -> list[Tokenized]:
        """Return the tokens of each conversation."""
        texts = [text for turns in conversations for text in turns.contents]
        encoded = iter(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        numbers = {role: SPECIAL.index(token) for role, token in ROLE_TOKENS.items()}
        tokenized = []
        for turns in conversations:
            ids, mask = list[int](), list[int]()
            for role in turns.roles:
                content = next(encoded).ids
                ids += (numbers[role], *content, SPECIAL.index(END))
                mask += [0, *[int(role == "assistant")] * (len(content) + 1)]
            tokenized.append(Tokenized(np.array(ids, np.int32), np.array(mask, np.uint8)))
        return tokenized

    def decode(self, conversations: Iterable[Iterable[int]]) -> list[str]:
        """Return the text of the tokens of each conversation, with special tokens between the messages."""
        texts: list[str] = self._tokenizer.decode_batch([list(ids) for ids in conversations], skip_special_tokens=False)
        return texts


class TemplateTokens(ChatTokens):
    """Use a tokenizer and chat template of Transformers, which must mark the assistant's text with {% generation %}.

    Args:
        folder: Folder of the tokenizer. Nothing is downloaded, and no code in the folder is run.

    Raises:
        DataError: The folder has no fast tokenizer, or no such template.
        MachineError: Transformers is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = str(folder)
        auto = needed("transformers", extra="frameworks").AutoTokenizer
        try:
            self._tokenizer = auto.from_pretrained(self._folder, local_files_only=True)
            template = self._tokenizer.get_chat_template()
        except Exception as error:
            raise DataError(f"{folder} has no tokenizer with a chat template that Transformers can load: {error}") from error
        if not self._tokenizer.is_fast or not _GENERATION.search(template):
            raise DataError(
                f"the chat template of {folder} does not mark what the assistant says, so the loss would count nowhere: put "
                f"{{% generation %}} and {{% endgeneration %}} around the assistant's content and end token."
            )
        self._special = tuple(token.content for token in self._tokenizer.added_tokens_decoder.values())
        self.num_tokens = len(self._tokenizer)
        self.pad = next((n for n in (self._tokenizer.pad_token_id, self._tokenizer.eos_token_id) if n is not None), 0)

    def encode(self, conversations: Sequence[Turns]) -> list[Tokenized]:
        """Return the tokens of each conversation."""
        return [self._encoded(number, turns) for number, turns in enumerate(conversations)]

    def decode(self, conversations: Iterable[Iterable[int]]) -> list[str]:
        """Return the text of the tokens of each conversation, with special tokens between the messages."""
        texts: list[str] = self._tokenizer.batch_decode([list(ids) for ids in conversations], skip_special_tokens=False)
        return texts

    def _encoded(self, number: int, turns: Turns) -> Tokenized:
        for place, content in enumerate(turns.contents, 1):
            if any(token in content for token in self._special):
                raise DataError(
                    f"conversation {number}, message {place} contains the text of a special token, which the tokenizer of "
                    f"{self._folder} would read as the end of a turn: remove the conversation, or use OwnTokens."
                )
        messages = [{"role": role, "content": content} for role, content in zip(*turns, strict=True)]
        try:
            made = self._tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        except Exception as error:  # noqa: BLE001  its message may contain text of the conversation
            reason = f"the chat template of {self._folder} refuses conversation {number} ({type(error).__name__})"
            raise DataError(f"{reason}: check which roles it accepts, and in which order.") from None
        return Tokenized(np.array(made["input_ids"], np.int32), np.array(made["assistant_masks"], np.uint8))


def load_tokens(folder: str | os.PathLike[str]) -> ChatTokens:
    """Load a folder written by `OwnTokens.save`, or a folder of Transformers.

    Raises:
        DataError: The folder has no tokenizer, or no template that marks what the assistant says.
        MachineError: The package that it needs is not installed.
    """
    path = Path(folder)
    try:
        template = json.loads((path / _CONFIG).read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} has no readable {_CONFIG}: give a folder with a tokenizer.") from error
    if template != TEMPLATE:
        return TemplateTokens(folder)
    try:
        return OwnTokens(needed("tokenizers", extra="dialogue").Tokenizer.from_file(str(path / _FILE)))
    except Exception as error:  # the library raises Exception itself
        raise DataError(f"{path / _FILE} is not a file of the tokenizers library: {error}.") from error


def texts_of(store: Store | PrivateRows) -> Iterator[str]:
    """Read the text of every message of a store, a few thousand conversations at a time."""
    for block in _blocks(store, ["contents"]):
        yield from block.column("contents").flatten().to_pylist()


def _blocks(store: Store | PrivateRows, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield conversations, without those of persons who were erased."""
    for first in range(0, len(store), BLOCK_ROWS):
        block = pa.RecordBatch.from_pydict(store.take(range(first, min(first + BLOCK_ROWS, len(store))), columns))
        yield block.filter(block.column("contents").is_valid())


def tokenize_stages(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    tokens: ChatTokens,
    *,
    keep: Callable[[pa.RecordBatch], Sequence[bool]] | None = None,
    private: PrivatePlan | None = None,
) -> None:
    """Write a store of tokens for each stage, one row per conversation.

    The columns are `conversation_id`, `persona_id`, `tokens`, `loss_mask` and `num_tokens`. If a conversation of the stage
    has a rejected answer, there are two more: `rejected_tokens`, its tokens with that answer as the last message, and
    `prompt`, the number of tokens that both have before it. They are null elsewhere.

    Args:
        source: Folder of `convert_stages`.
        folder: Folder of the new stores, which `open_stages` opens too.
        tokens: Tokenizer and template.
        keep: Which rows of a block to use; None uses all. A stage of which nothing is kept has no store.
        private: Read an encrypted source as the role `owner`, and encrypt the tokens with the keys of the same persons.
            Conversations of persons who were erased are left out.

    Raises:
        DataError: A store exists already, or a conversation cannot be written with the template.
    """
    kind = np.uint16 if tokens.num_tokens <= 2**16 else np.int32
    vault = private.vault() if private else None
    for stage, store in open_stages(source).items():
        opened = private.open(store, role="owner") if private else store
        kept = (block if keep is None else block.filter(pa.array(keep(block), pa.bool_())) for block in _blocks(opened))
        whole = (block for block in kept if len(block))
        first = next(whole, None)
        if first is None:
            continue
        pairs = any(block.column("rejected").null_count < len(block) for block in _blocks(opened, ["contents", "rejected"]))
        sealed = [*_SEALED, *(["rejected_tokens"] if pairs else [])] if vault else []
        facts = {name: value for name, value in store.manifest.provenance.items() if name != SEALED}
        facts |= mark(sealed, "persona_id") if vault else {}
        with StoreWriter(Path(folder) / stage, provenance=facts) as writer:
            for block in chain([first], whole):
                rows = _tokenized(block, tokens, kind, pairs=pairs)
                if vault is None:
                    rows |= {name: _lists(rows[name], kind) for name in rows.keys() & {*_SEALED, "rejected_tokens"}}
                    writer.write(rows)
                else:
                    writer.write(vault.sealed(rows, sealed, person="persona_id", are_hashes=True))


def _tokenized(block: pa.RecordBatch, tokens: ChatTokens, kind: type[np.generic], *, pairs: bool) -> dict[str, Any]:
    turns = list(map(Turns, block.column("roles").to_pylist(), block.column("contents").to_pylist()))
    made = tokens.encode(turns)
    columns: dict[str, Any] = {
        "conversation_id": block.column("conversation_id"),
        "persona_id": block.column("persona_id").cast(pa.string()),
        "tokens": _objects([row.ids.astype(kind) for row in made]),
        "loss_mask": _objects([row.mask for row in made]),
        "num_tokens": pa.array([len(row.ids) for row in made], pa.int32()),
    }
    if not pairs:
        return columns
    answers = block.column("rejected").to_pylist()
    rows = [row for row, answer in enumerate(answers) if answer is not None]
    worse = tokens.encode([Turns(turns[row].roles, [*turns[row].contents[:-1], answers[row]]) for row in rows])
    rejected: list[npt.NDArray[Any] | None] = [None] * len(turns)
    prompt: list[int | None] = [None] * len(turns)
    for row, other in zip(rows, worse, strict=True):
        rejected[row], prompt[row] = other.ids.astype(kind), answer_start(other.mask)
        if answer_start(made[row].mask) != prompt[row]:
            raise DataError(
                "the chat template writes the messages before the last answer differently for two answers, so they cannot "
                "be compared: use a template that depends on earlier messages only."
            )
    columns["rejected_tokens"] = _objects(rejected)
    columns["prompt"] = pa.array(prompt, pa.int32())
    return columns


def _objects(rows: Sequence[npt.NDArray[Any] | None]) -> npt.NDArray[np.object_]:
    """Return an array of arrays, one per row, which a vault encrypts as they are."""
    made = np.empty(len(rows), object)
    made[:] = rows
    return made


def answer_start(mask: npt.NDArray[np.uint8]) -> int:
    """Return where the last answer begins: the last part of ones in a mask."""
    last = int(np.flatnonzero(mask)[-1])
    return int(np.flatnonzero(mask[:last] == 0)[-1]) + 1


def _lists(rows: npt.NDArray[np.object_], kind: type[np.generic]) -> pa.Array:
    """Return arrays as a column of lists."""
    whole = [row for row in rows if row is not None]
    offsets = np.concatenate(([0], np.cumsum([0 if row is None else len(row) for row in rows]))).astype(np.int32)
    values = np.concatenate(whole) if whole else np.empty(0, kind)
    missing = pa.array([row is None for row in rows]) if len(whole) < len(rows) else None
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=missing)
