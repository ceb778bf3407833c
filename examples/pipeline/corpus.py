"""Write the text that is included in every Python as three files, and a tenth of each as held-out text."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from pydoc_data.topics import topics

PARTS = {
    "statements": ("assert", "assignment", "class", "compound", "for", "function", "if", "import", "try", "while", "with"),
    "objects": ("attribute-access", "customization", "numeric-types", "objects", "sequence-types", "specialnames", "types"),
}


def paragraphs(names: set[str]) -> list[str]:
    """Return the paragraphs of some topics, each once."""
    found = (part.strip() for name in sorted(names) for part in re.split(r"\n\s*\n", topics[name]))
    return [part for part in dict.fromkeys(found) if len(part) >= 64]


def main(out: Path) -> None:
    """Write the files."""
    special = {name for names in PARTS.values() for name in names}
    parts = {"general": paragraphs(set(topics) - special)}
    parts |= {part: paragraphs({name for name in names if name in topics}) for part, names in PARTS.items()}
    for part, texts in parts.items():
        held_out = texts[::10]
        (out / f"{part}.txt").write_text("\n".join(text for text in texts if text not in held_out), encoding="utf-8")
        (out / f"{part}-held-out.txt").write_text("\n".join(held_out), encoding="utf-8")
    print(", ".join(f"{part}: {len(texts)} paragraphs" for part, texts in parts.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
