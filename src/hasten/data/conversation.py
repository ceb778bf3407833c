"""Check conversations and turn each into one row of a store.

A conversation is a JSON object: `conversation_id` (or `id`), `source`, `messages` with `role`, `content` and an optional
`timestamp`, and `metadata` with `stage`, `quality_profile`, `voice_signature`, `crisis_intensity` and `persona_id`.
`rejected` is a worse text for the last message, for training on preferences. Only the id and the messages are required. A
refusal names the message and the reason, never any text of the conversation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa

ROLES: Mapping[str, str] = {
    **dict.fromkeys(("system",), "system"),
    **dict.fromkeys(("user", "human", "client", "patient"), "user"),
    **dict.fromkeys(("assistant", "gpt", "counselor", "counsellor", "therapist"), "assistant"),
}
"""Role in the store of each role that a file may use."""
LABELS = ("stage", "quality_profile", "voice_signature", "crisis_intensity", "persona_id")
"""Keys of the metadata that become columns of text. A value that is not text is stored as its JSON text."""
MAX_MESSAGE_BYTES = 2**20
"""Maximum size of a message in UTF-8."""
MAX_MESSAGES = 10_000
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("conversation_id", "source", *LABELS)),
        ("roles", pa.list_(pa.string())),
        ("contents", pa.list_(pa.string())),
        ("rejected", pa.string()),
        ("timestamps", pa.list_(pa.timestamp("us", "UTC"))),
        ("other", pa.string()),
    ]
)
"""Columns of a store of conversations. `roles`, `contents` and `timestamps` have one item per message. `timestamps` is null
if no message has one. `other` is the JSON text of all other keys, also those of the metadata and of messages."""
STAGE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TIME = "the timestamp is neither ISO 8601 text nor seconds since 1970"


class Refusal(NamedTuple):
    """Say why a conversation cannot be used, without its content.

    Attributes:
        reason: The reason.
        message: Number of the message, from 1; 0 if the reason is not in one message.
    """

    reason: str
    message: int = 0


def row_of(record: Mapping[str, Any]) -> dict[str, Any] | Refusal:
    """Return the row of `SCHEMA` for a conversation, or why it has none.

    `user` and `assistant` must alternate, and either may begin. One `system` message may come first. Timestamps must not go
    backwards; those without a time zone are UTC.
    """
    name = "conversation_id" if "conversation_id" in record else "id"
    if reason := _problem(record, record.get(name)):
        return Refusal(reason)
    messages, metadata = record["messages"], record.get("metadata") or {}
    roles, times = list[str](), list[datetime | None]()
    for place, message in enumerate(messages, 1):
        if reason := _add(message, roles, times):
            return Refusal(reason, place)
    if roles == ["system"]:
        return Refusal("the conversation has only a system message")
    if (rejected := record.get("rejected")) is not None and (reason := _rejected_problem(rejected, messages, roles)):
        return Refusal(reason)
    known = {name, "source", "messages", "metadata", "rejected"}
    other = {key: value for key, value in record.items() if key not in known}
    if unknown := {key: value for key, value in metadata.items() if key not in LABELS}:
        other["metadata"] = unknown
    of_messages = [{k: v for k, v in m.items() if k not in {"role", "content", "timestamp"}} for m in messages]
    if any(of_messages):
        other["messages"] = of_messages
    return {
        "conversation_id": str(record[name]),
        "source": record.get("source"),
        **{label: _text(metadata.get(label)) for label in LABELS},
        "roles": roles,
        "contents": [message["content"] for message in messages],
        "rejected": rejected,
        "timestamps": times if any(times) else None,
        "other": json.dumps(other) if other else None,
    }


def _problem(record: Mapping[str, Any], name: Any) -> str:
    """Return why the fields of a conversation cannot be used, apart from single messages; empty if they can."""
    messages, metadata = record.get("messages"), record.get("metadata")
    if isinstance(name, bool) or not (isinstance(name, int) or (isinstance(name, str) and name.strip())):
        return "the conversation has no id: it needs a field 'conversation_id' or 'id' of text"
    if not isinstance(record.get("source"), str | None):
        return "the field 'source' is not text"
    if not isinstance(metadata, dict | None):
        return "the field 'metadata' is not an object"
    stage = (metadata or {}).get("stage")
    if stage is not None and not (isinstance(stage, str) and STAGE_NAME.fullmatch(stage)):
        return "the stage is not a name of at most 64 letters, digits, '_' and '-'"
    if not isinstance(messages, list) or not messages:
        return "the conversation has no messages: it needs a field 'messages' with a list"
    return f"the conversation has more than {MAX_MESSAGES:,} messages" if len(messages) > MAX_MESSAGES else ""


def _add(message: Any, roles: list[str], times: list[datetime | None]) -> str:
    """Add the role and time of a message to those before it; return why the message cannot be used, empty if it can."""
    if not isinstance(message, dict):
        return "the message is not an object"
    role, content, time = message.get("role"), message.get("content"), message.get("timestamp")
    role = ROLES.get(role.lower()) if isinstance(role, str) else None
    if role is None:
        return f"the role is none of {', '.join(ROLES)}"
    if role == "system" and roles:
        return "a system message is not the first message"
    if role in roles[-1:]:
        return f"the role {role} does not alternate with that of the message before"
    if reason := _content_problem(content):
        return reason
    if time is not None:
        try:
            time = datetime.fromisoformat(time) if isinstance(time, str) else datetime.fromtimestamp(time, UTC)
            time = time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC)
        except (ValueError, TypeError, OverflowError, OSError):
            return _TIME
        before = next((earlier for earlier in reversed(times) if earlier is not None), None)
        if before is not None and time < before:
            return "the timestamp is earlier than that of a message before"
    roles.append(role)
    times.append(time)
    return ""


def _rejected_problem(rejected: Any, messages: list[Any], roles: list[str]) -> str:
    if roles[-1] != "assistant" or len(roles) == 1:
        return "the field 'rejected' needs messages that end with an answer of the assistant"
    if reason := _content_problem(rejected):
        return f"field 'rejected': {reason}"
    return "the field 'rejected' equals the last message" if rejected == messages[-1]["content"] else ""


def _content_problem(content: Any) -> str:
    if not isinstance(content, str):
        return "the content is not text"
    if not content.strip():
        return "the content is empty"
    try:
        size = len(content) if content.isascii() else len(content.encode())
    except UnicodeEncodeError:
        return "the content contains half of a surrogate pair, which is not text"
    return f"the content is larger than {MAX_MESSAGE_BYTES:,} bytes" if size > MAX_MESSAGE_BYTES else ""


def _text(value: Any) -> str | None:
    return value if isinstance(value, str | None) else json.dumps(value)
