"""Generate pages at build time: the command reference, the catalogue, the notebook and the tables of results.

MkDocs loads this file as a hook. A page takes a table by a comment of its own line: `<!-- table: NAME -->`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(Path(__file__).parent)]

import cli_reference  # noqa: E402 - found by the path above
import grafana  # noqa: E402
import notebook  # noqa: E402

from benchmarks import catalogue, tables  # noqa: E402
from benchmarks.tuning import results  # noqa: E402

MARKER = re.compile(r"^<!-- table: (\w+) -->$", re.MULTILINE)
_found: dict[str, Any] = {}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated as a whole."""
    _found.update(results())
    source = ROOT / "docs" / "quickstart.ipynb"
    for path, text in {
        "reference/cli.md": cli_reference.page(),
        "catalogue.md": catalogue.whole_page(_found),
        "quickstart-notebook.md": notebook.page(source),
        "assets/grafana.json": grafana.dashboard(),
    }.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace each marker with its table."""
    return MARKER.sub(lambda marker: tables.TABLES[marker[1]](_found), markdown)
