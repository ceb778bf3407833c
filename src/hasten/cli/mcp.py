"""`hasten mcp`: Hasten's verbs as tools for agents, on standard input and output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hasten.core.errors import MachineError


def mcp(
    folder: Annotated[Path, typer.Option(help="Folder that tools may use. Paths outside of it are refused.")] = Path(),
) -> None:
    """Serve profile, tune, explain, check and evidence as tools of the Model Context Protocol, on standard input and output.

    Each tool runs a command of Hasten in the folder, shows it first, and returns it with the result. `plan_only` returns the
    command alone.
    """
    try:
        from hasten.cli.mcp_server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise MachineError("`hasten mcp` needs the package mcp. Run: pip install 'hasten[mcp]'") from error
    serve(folder)
