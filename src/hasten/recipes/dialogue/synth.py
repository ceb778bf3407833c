"""Generate counselling conversations for users without their own data: for tests, demonstrations and benchmarks only.

Clients speak of a trouble, and counsellors reflect, ask and suggest, in sentences put together from parts. Lengths vary as
in real question-and-answer archives: most conversations are short, a few are very long. The last stage has a rejected answer
for each conversation. Left out: everything that makes a conversation help somebody.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from hasten.recipes.drawn import drawn_once

_DRAWING = 2
"""Increased when the conversations of a seed change, or what is prepared from them."""
_SHARES = {
    "foundation": 0.35,
    "therapeutic_expertise": 0.20,
    "edge_case_stress": 0.15,
    "voice_persona": 0.11,
    "long_running_therapy": 0.06,
    "safety_preference": 0.13,
}
_TROUBLES = {
    "my sleep": ("lie awake until three", "wake up before the alarm every day", "am tired at work all the time"),
    "my job": ("cannot keep up with the deadlines", "dread every Monday", "was passed over again"),
    "my marriage": ("argue with my partner about small things", "feel like a guest at home", "stopped talking at dinner"),
    "my mother": ("get a call from her every evening", "never seem to do enough for her", "feel guilty when I say no"),
    "school": ("sit in the library and read nothing", "failed the second exam", "avoid the people in my course"),
    "my drinking": ("promise to stop and do not", "hide the bottles", "drink alone on weekdays"),
    "losing my father": ("still set a place for him", "cannot open his room", "cry in the car"),
    "panic": ("have to leave the bus", "cannot breathe in the supermarket", "count the exits of every room"),
    "money": ("do not open the letters", "owe two months of rent", "lie to my friends about it"),
    "being alone": ("speak with no one for days", "watch others through the window", "eat standing in the kitchen"),
}
_FEELINGS = ("ashamed", "angry", "empty", "afraid", "worn out", "confused", "numb", "hopeless", "restless", "sad")
_SINCE = ("for a few weeks", "since the winter", "for two years now", "since I moved here", "for as long as I remember")
_REFLECT = (
    "It sounds as if {trouble} takes up a lot of room at the moment, and that you feel {feeling} about it.",
    "Thank you for telling me. Feeling {feeling} {since} is a heavy load.",
    "When you say that you {detail}, I hear how much {trouble} matters to you.",
    "Many people who {detail} would feel {feeling}; it makes sense.",
)
_ASK = (
    "What was different on a day when it was a little easier?",
    "Who else knows how you feel about {trouble}?",
    "When you feel {feeling}, what happens just before?",
    "What would a good friend notice first if {trouble} became lighter?",
    "How would you like us to use our time today?",
)
_SUGGEST = (
    "This week, write down in two lines each evening when you felt less {feeling}.",
    "You could try one small step: ten minutes for yourself before you think about {trouble}.",
    "Breathe out slowly, longer than you breathe in, five times, and notice your feet on the floor.",
    "Let us make a list of three people whom you could call when you {detail}.",
    "If it ever becomes unbearable, call the emergency number or a crisis line; you do not have to wait for our next hour.",
)
_WORSE = (
    "Everybody has problems with {trouble}. Just stop thinking about it.",
    "If you {detail}, that is your own fault, and you should be {feeling}.",
    "I know exactly what is wrong with you: you must leave everything behind today.",
    "Do not tell anybody about this, it would only make {trouble} worse.",
)
_TELL = (
    "I want to talk about {trouble}. I {detail}, and I feel {feeling}.",
    "I {detail} {since}. It is about {trouble}, I think.",
    "Yes. And then I feel {feeling}, and I {detail}.",
    "I have never said this before, but I {detail}.",
    "It has been so {since}. Is it normal to be {feeling} about {trouble}?",
)


@dataclass(frozen=True, kw_only=True)
class DrawnTalks:
    """Conversations to generate.

    Attributes:
        count: Number of conversations, at least 50.
        num_tokens: Size of the vocabulary of their tokenizer.
        seed: Seed of what is said.
    """

    count: int = 1500
    num_tokens: int = 1024
    seed: int = 0


def conversations(drawn: DrawnTalks) -> Iterator[dict[str, Any]]:
    """Generate conversations in the schema of `hasten.data.conversation`."""
    chance = random.Random(drawn.seed)  # noqa: S311  no secret
    for number in range(drawn.count):
        stage = chance.choices([*_SHARES], [*_SHARES.values()])[0]
        trouble = chance.choice([*_TROUBLES])
        messages: list[dict[str, str]] = []
        for _ in range(min(1 + int(chance.lognormvariate(0.2, 0.9)), 16)):
            messages.append({"role": "client", "content": _said(chance, trouble, _TELL)})
            messages.append({"role": "counselor", "content": _said(chance, trouble, _REFLECT, _ASK, _SUGGEST)})
        record: dict[str, Any] = {
            "conversation_id": f"drawn-{number:06d}",
            "source": "generated",
            "messages": messages,
            "metadata": {
                "stage": stage,
                "persona_id": f"person-{chance.randrange(max(drawn.count // 3, 1)):05d}",
                "crisis_intensity": chance.choice(("none", "low", "high")),
            },
        }
        if stage == "safety_preference":
            record["rejected"] = _said(chance, trouble, _WORSE)
        yield record


def _said(chance: random.Random, trouble: str, *kinds: tuple[str, ...]) -> str:
    """Return some sentences of each kind."""
    sentences = []
    for kind in kinds:
        for sentence in chance.sample(kind, min(1 + int(chance.lognormvariate(-0.3, 0.7)), len(kind))):
            detail, feeling, since = (chance.choice(parts) for parts in (_TROUBLES[trouble], _FEELINGS, _SINCE))
            sentences.append(sentence.format(trouble=trouble, detail=detail, feeling=feeling, since=since))
    return " ".join(sentences)


def write(folder: Path, count: int, seed: int, told: Callable[[], None]) -> None:
    """Write `conversations.jsonl` to a folder; `told` is called after each conversation."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "conversations.jsonl").open("w", encoding="utf-8") as file:
        for record in conversations(DrawnTalks(count=count, seed=seed)):
            file.write(json.dumps(record) + "\n")
            told()


def drawn_folder(drawn: DrawnTalks) -> Path:
    """Return the prepared folder of generated conversations, made once on this machine.

    Raises:
        MachineError: The folder cannot be written.
    """
    from hasten.recipes.dialogue.prepare import prepare  # noqa: PLC0415  loads the data layer

    def draw(folder: Path) -> None:
        write(folder / "source", drawn.count, drawn.seed, lambda: None)
        prepare(folder / "source", folder / "prepared", num_tokens=drawn.num_tokens, conversion={"processes": 1})

    name = "-".join(("dialogue", str(_DRAWING), *map(str, astuple(drawn))))
    return drawn_once(name, draw, words="generating conversations") / "prepared"
