"""Lint for texts: words of dialect that were once in this project do not come back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
READ = ("*.py", "*.md", "*.html", "*.js", "*.css", "*.toml", "*.yml", "*.ipynb", "Makefile", ".ci/*")
LEFT_OUT = ("benchmarks/results/", "tests/test_plain_english.py")
"""Recorded measurements stay as they were; and this list."""

INSTEAD = {
    "alike": "equal, the same",
    "all else": "everything else",
    "anew": "again, from scratch",
    "(is|are|was|were|be) told": "is reported, is shown",
    "dearer": "more expensive",
    "for who": "for users who",
    "hangs? on": "depends on",
    "hearken|behold|lest|thereof|therein|whence|whither|upon": "say it in today's words",
    "lies? (in|beside)": "is in, is next to",
    "mend(s|ed|ing)?": "fix, repair",
    "nobody": "no one, or name who is meant",
    "of ours": "Hasten's",
    "takes? up again|taken up again": "resume",
    "(what|who|which) is no": "that is not a",
    "whoever": "name who is meant",
}
DIALECT = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b", re.IGNORECASE)


def instead(word: str) -> str:
    """Return what to write in place of a word."""
    return next(better for dialect, better in INSTEAD.items() if re.fullmatch(dialect, word, re.IGNORECASE))


def test_no_text_is_in_dialect() -> None:
    listed = subprocess.run(["git", "ls-files", "--", *READ], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.splitlines() if not name.startswith(LEFT_OUT)]
    assert len(names) > 500
    hits = [
        f"{name}:{text.count(chr(10), 0, hit.start()) + 1}: {hit[0]!r}, instead: {instead(hit[0])}"
        for name in names
        for text in [(ROOT / name).read_text(encoding="utf-8")]
        for hit in DIALECT.finditer(text)
    ]
    assert not hits, "\n".join(["", *hits])


def test_the_list_finds_what_it_names() -> None:
    assert DIALECT.search("Begin anew, whoever asks") is not None
    assert DIALECT.search("a renewed permission; an amended plan; commend; tomorrow lies ahead") is None
