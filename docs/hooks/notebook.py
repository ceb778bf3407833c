"""Show a notebook as a page: its text, its code and the output it was saved with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def page(path: Path) -> str:
    """Return the notebook as Markdown."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _cell(cell)) + "\n"


def _cell(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    shown = [text for output in cell["outputs"] if (text := _text(output))]
    return [f"```python\n{source}\n```", *(f'```text title="Output"\n{text.rstrip()}\n```' for text in shown)]


def _text(output: dict[str, Any]) -> str:
    """Return what an output shows as plain text."""
    return "".join(output["text"] if output["output_type"] == "stream" else output.get("data", {}).get("text/plain", []))
