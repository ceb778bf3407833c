"""Draw a pipeline as one offline page with an SVG: a column for each depth, stages as boxes, needs as lines."""

from __future__ import annotations

from html import escape

from hasten.pipeline.description import Pipeline

_WIDE, _HIGH, _ACROSS, _DOWN = 190, 54, 70, 22
_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2rem}text{font:13px system-ui,sans-serif}"
    "rect{fill:#eef2ff;stroke:#4f46e5}.merge{fill:#fef3c7}.evaluate{fill:#ecfdf5}.small{font-size:11px;fill:#555}"
    "path{fill:none;stroke:#888}"
)


def draw(pipeline: Pipeline) -> str:
    """Return the page."""
    depth: dict[str, int] = {}
    columns: list[list[str]] = []
    for name, stage in pipeline.stages.items():
        depth[name] = 1 + max((depth[other] for other in stage.needs), default=-1)
        if depth[name] == len(columns):
            columns.append([])
        columns[depth[name]].append(name)
    rows = max(map(len, columns))
    place = {
        name: (10 + column * (_WIDE + _ACROSS), 10 + (row + (rows - len(names)) / 2) * (_HIGH + _DOWN))
        for column, names in enumerate(columns)
        for row, name in enumerate(names)
    }
    parts = []
    for name, stage in pipeline.stages.items():
        x, y = place[name]
        for other in stage.needs:
            start, end = place[other][0] + _WIDE, place[other][1] + _HIGH / 2
            bend = _ACROSS * 0.6
            parts.append(f'<path d="M{start} {end} C{start + bend} {end} {x - bend} {y + _HIGH / 2} {x} {y + _HIGH / 2}"/>')
    for name, stage in pipeline.stages.items():
        x, y = place[name]
        gates = f" · {len(stage.gates)} gate{'s' if len(stage.gates) > 1 else ''}" if stage.gates else ""
        parts += [
            f'<rect class="{stage.kind}" x="{x}" y="{y}" width="{_WIDE}" height="{_HIGH}" rx="6"/>',
            f'<text x="{x + 10}" y="{y + 23}">{escape(name)}</text>',
            f'<text class="small" x="{x + 10}" y="{y + 41}">{stage.kind}{gates}</text>',
        ]
    width, height = len(columns) * (_WIDE + _ACROSS), rows * (_HIGH + _DOWN) + 20
    title = escape(f"{pipeline.root.name}: {len(pipeline.stages)} stages")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">{"".join(parts)}</svg></html>\n'
    )
