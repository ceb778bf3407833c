"""One HTML page that needs no network, no server and no other file: what every page of Hasten is made of.

Everything a user named is escaped by jinja2; figures travel as JSON whose angle brackets are escaped; a content security
policy lets only the page's own two scripts run and nothing load.
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
"""A figure, or a sentence in place of one that has no data."""


def write_page(text: str, path: Path, option: str) -> None:
    """Write a page to `path`, whole or not at all.

    Args:
        text: The page.
        path: The file.
        option: Of the command line, which names another place.

    Raises:
        HastenError: The folder cannot be written.
    """
    try:
        write_atomically(path, text)
    except OSError as error:
        raise HastenError(f"Cannot write the page to {path}: {error}. Choose another place with {option}.") from error


def render_page(environment: jinja2.Environment, template: str, plots: Mapping[str, Plot], **context: Any) -> str:
    """A page as text.

    Args:
        environment: Of the templates, see `environment`.
        template: Its name.
        plots: By name; the template places them by its macro `plot`.
        context: What else the template names.
    """
    drawn = {name: plot for name, plot in plots.items() if not isinstance(plot, str)}
    plotly, page = (_plotly() if drawn else ""), _source(environment, "report.js")
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in (plotly, page) if script)
    return environment.get_template(template).render(
        **context,
        sentences={name: plot for name, plot in plots.items() if isinstance(plot, str)},
        heights={name: plot["layout"]["height"] for name, plot in drawn.items()},
        figures_json=_json(drawn),
        hashes=hashes,
        css=_source(environment, "report.css"),
        script=page,
        plotly=plotly,
    )


def environment() -> jinja2.Environment:
    """The templates of this package; whatever they are given is escaped."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("hasten.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _json(value: Any) -> str:
    """JSON that is safe between script tags: no angle bracket, ampersand or line separator stays as it is.

    Numbers that are not finite, such as a NaN loss, become null.
    """
    escaped = json.dumps(schema.write(value), allow_nan=False)
    for character in "<>&\u2028\u2029":
        escaped = escaped.replace(character, f"\\u{ord(character):04x}")
    return escaped


def _source(environment: jinja2.Environment, name: str) -> str:
    return environment.get_template(name).render()


@functools.cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # noqa: PLC0415  (slow to import, and only a page that is written needs it)

    source: str = get_plotlyjs()
    if "</script" in source.lower():
        raise HastenError("The plotly package holds a script that cannot be embedded. Run `pip install 'plotly>=7,<8'`.")
    return source.replace("\r\n", "\n").replace("\r", "\n")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
