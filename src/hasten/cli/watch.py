"""`hasten watch`: follow runs live, in the browser or in the terminal."""

from __future__ import annotations

import threading
import webbrowser
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from hasten.cli.command import run_names
from hasten.cli.say import console, say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hasten.monitor.watch.runs import Watch

_TEXT_EVERY_S = 1.0


def watch(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Folders of runs, or folders above them.", autocompletion=run_names)
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Draw in the terminal instead: needs no browser.")] = False,
    once: Annotated[bool, typer.Option("--once", help="With --text: draw once, and end.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
) -> None:
    """Follow runs live: phases of a step, throughput, loss, memory and alerts of all runs below some folders.

    The page is served on this machine only, behind a token. Nothing is written to the runs. From another machine, forward
    the port: ssh -L PORT:127.0.0.1:PORT HOST.
    """
    from hasten.monitor.watch.runs import Watch

    watched = Watch(runs or [Path()])
    if text or once:
        _draw(watched, once=once)
        return
    from hasten.monitor.watch.server import serve
    from hasten.report.page import source

    with serve(watched, port=port, colours=source("phases.css")) as address:
        say(f"Runs: {len(watched.ranks)}. Watch them at\n{address}\nCtrl-C ends it.")
        if browser:
            webbrowser.open(address)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


def _draw(watched: Watch, *, once: bool) -> None:
    from rich.live import Live

    from hasten.monitor.watch.text import draw

    def drawn() -> RenderableType:
        watched.update()
        return draw(watched.ranks, console.width)

    if once:
        console.print(drawn())
        return
    with suppress(KeyboardInterrupt), Live(drawn(), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            sleep(_TEXT_EVERY_S)
            live.update(drawn(), refresh=True)
