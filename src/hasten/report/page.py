"""Render Hasten's HTML pages. A page needs no network, no server and no other file.

Jinja2 escapes all text from users, and figures are embedded as JSON with escaped angle brackets. A content security policy
allows only the page's own two scripts, and no requests.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import jinja2

from hasten.core.errors import HastenError
from hasten.core.files import write_atomically
from hasten.report import schema
from hasten.report.figure import Figure

Plot: TypeAlias = "Figure | str"
"""A figure, or a sentence instead of a figure without data."""


def write_page(text: str, path: Path, option: str) -> None:
    """Write a page, or other results, to `path`, atomically.

    Args:
        text: The content.
        path: The file.
        option: The command-line option that chooses another path, for the error message.

    Raises:
        HastenError: The file cannot be written.
    """
    try:
        write_atomically(path, text)
    except OSError as error:
        raise HastenError(f"Cannot write {path}: {error.strerror}. Choose another path with {option}.") from error


def render_page(environment: jinja2.Environment, template: str, plots: Mapping[str, Plot], **context: Any) -> str:
    """Return a page as text.

    Args:
        environment: The environment of the templates, see `environment`.
        template: Name of the template.
        plots: Plots by name. The template places each of them.
        context: Other variables of the template.
    """
    drawn = {name: plot for name, plot in plots.items() if not isinstance(plot, str)}
    plotly, page = (_plotly() if drawn else ""), source("report.js")
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in (plotly, page) if script)
    return environment.get_template(template).render(
        **context,
        sentences={name: plot for name, plot in plots.items() if isinstance(plot, str)},
        heights={name: plot["layout"]["height"] for name, plot in drawn.items()},
        figures_json=_json(drawn),
        hashes=hashes,
        css=source("report.css"),
        script=page,
        plotly=plotly,
    )


def environment() -> jinja2.Environment:
    """Return an environment for the templates of this package, which escapes all values."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("hasten.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _json(value: Any) -> str:
    """Return JSON that is safe between script tags: angle brackets, ampersands and line separators are escaped.

    Numbers that are not finite, such as a NaN loss, become null.
    """
    escaped = json.dumps(schema.write(value), allow_nan=False)
    for character in "<>&\u2028\u2029":
        escaped = escaped.replace(character, f"\\u{ord(character):04x}")
    return escaped


def source(name: str) -> str:
    """Return a style sheet or script of the pages, such as `phases.css` with the colour of each phase."""
    return environment().get_template(name).render()


@functools.cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # noqa: PLC0415  (slow to import, and needed only to write a page)

    source: str = get_plotlyjs()
    if "</script" in source.lower():
        raise HastenError("This plotly's script cannot be embedded in a page. Run `pip install 'plotly>=7,<8'`.")
    return source.replace("\r\n", "\n").replace("\r", "\n")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
