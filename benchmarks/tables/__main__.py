"""Write the block of README.md, and the measurements that ship with the package."""

from __future__ import annotations

from pathlib import Path

from benchmarks import catalogue
from benchmarks.record import ROOT
from benchmarks.tables.summary import readme_table
from benchmarks.tuning import results
from hasten.core.files import write_atomically

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def put_between(path: Path, text: str) -> None:
    """Put tables between the markers of a page."""
    before, rest = path.read_text(encoding="utf-8").split(BEGIN, maxsplit=1)
    after = rest.split(END, maxsplit=1)[1]
    write_atomically(path, before + BEGIN + "\n" + text + END + after)


if __name__ == "__main__":
    put_between(ROOT / "README.md", readme_table(results()))
    catalogue.main()
