"""The tools for agents, called by the official client; once over real pipes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("mcp")
import anyio
from mcp import Client, StdioServerParameters

from hasten.cli.mcp_server import make_server, without_bulk
from hasten.report.evidence import parse, save
from tests.cli.called import called
from tests.report.sample import full
from tests.tune.jobs import children, write_job


def talk(folder: Path, act: Callable[[Client], Coroutine[Any, Any, Any]]) -> Any:
    async def main() -> Any:
        async with Client(make_server(folder)) as client:
            return await act(client)

    return asyncio.run(main())


def call(folder: Path, tool: str, **arguments: Any) -> Any:
    return talk(folder, lambda client: client.call_tool(tool, arguments))


def test_the_tools_are_typed_and_described(tmp_path: Path) -> None:
    listed = talk(tmp_path, lambda client: client.list_tools()).tools
    tools = {tool.name: tool for tool in listed}
    assert set(tools) == {"profile", "tune", "check", "explain", "evidence"}
    for tool in tools.values():
        assert tool.description
        assert tool.output_schema
    assert tools["check"].input_schema["properties"]["floor"]["type"] == "number"
    assert "context" not in tools["check"].input_schema["properties"]


@pytest.mark.parametrize(
    ("tool", "arguments", "command"),
    [
        ("profile", {"target": "a b.py:J"}, "hasten profile --seconds=2.5 -- 'a b.py:J'"),
        ("tune", {"target": "t.py", "budget": "1m", "out": "o"}, "hasten tune --budget=1m --out={root}/o -- t.py"),
        (
            "check",
            {"target": "t.py", "arguments": ["--x", "; rm -rf ."], "against": "--evil"},
            "hasten check --budget=10m --floor=0.03 --against=--evil -- t.py --x '; rm -rf .'",
        ),
        ("explain", {"technique": "--help"}, "hasten explain --out={root}/hasten-out -- --help"),
    ],
)
def test_a_plan_shows_the_command_and_runs_nothing(
    tmp_path: Path, tool: str, arguments: dict[str, Any], command: str
) -> None:
    with mock.patch("anyio.open_process", side_effect=AssertionError("it ran")):
        found = call(tmp_path, tool, **arguments, plan_only=True).structured_content
    assert found == {"command": command.format(root=tmp_path), "ran": False, "status": None, "result": None}


@pytest.mark.parametrize(
    "arguments",
    [
        {"target": "../other.py"},
        {"target": "/etc/passwd.py:Job"},
        {"target": "link/x.py"},
        {"target": "link.module:Job"},
        {"target": "linked:Job"},
        {"target": "t.py", "arguments": ["--data=/etc"]},
        {"target": "t.py", "arguments": ["--data", "../secret"]},
        {"target": "t.py", "arguments": ["link"]},
        {"target": "t.py", "arguments": ["~/secret"]},
        {"target": "t.py", "arguments": [".."]},
    ],
)
def test_paths_outside_of_the_folder_are_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to("/etc")
    (root / "linked.py").symlink_to("/etc/passwd")
    for tool in ("profile", "tune", "check"):
        found = call(root, tool, **arguments)
        assert found.is_error
        assert "the only folder that this server may use" in found.content[0].text
    assert call(root, "tune", target="t.py", out="link/o").is_error
    assert call(root, "evidence", out="../x").is_error


def test_evidence_is_read_without_running_anything(tmp_path: Path) -> None:
    (tmp_path / "hasten-out").mkdir()
    missing = call(tmp_path, "evidence")
    assert missing.is_error
    save(parse(full()), tmp_path / "hasten-out" / "evidence.json")
    with mock.patch("anyio.open_process", side_effect=AssertionError("it ran")):
        found = call(tmp_path, "evidence").structured_content
    assert "faster" in found["headline"]
    assert {item["name"] for item in found["candidates"]} == {item.name for item in parse(full()).rungs}


def test_raw_samples_are_left_out() -> None:
    assert without_bulk({"a": [{"samples": [1], "b": 2}], "machine": {}}) == {"a": [{"b": 2}]}


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hasten.cli.mcp_server", raising=False)
    for name in [name for name in sys.modules if name == "mcp" or name.startswith("mcp.")]:
        monkeypatch.setitem(sys.modules, name, None)
    done = called("mcp")
    assert done.returncode == 1
    assert "pip install 'hasten[mcp]'" in done.stderr
    assert called("mcp", "--folder", "/nowhere/at/all").returncode == 1


@pytest.mark.slow
def test_over_real_pipes_a_command_is_announced_run_and_its_failure_told(tmp_path: Path) -> None:
    target = write_job(tmp_path)
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "hasten", "mcp"], cwd=tmp_path, env=dict(os.environ)
    )
    told: list[str] = []

    async def note_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    async def main() -> tuple[Any, Any]:
        async with Client(parameters) as client:
            good = await client.call_tool("explain", {"technique": "precision"}, progress_callback=note_progress)
            bad = await client.call_tool("profile", {"target": target.replace("Good", "Missing"), "seconds": 0.1})
            return good, bad

    good, bad = asyncio.run(main())
    assert good.structured_content["ran"] is True
    assert good.structured_content["status"] == 0
    assert good.structured_content["result"]["name"] == "precision"
    assert told[0] == f"running in {tmp_path.resolve()}: {good.structured_content['command']}"
    assert bad.is_error
    assert "has no `Missing`" in bad.content[0].text
    assert json.dumps(good.structured_content)
    assert not list(Path(tempfile.gettempdir()).glob("hasten-mcp-*"))


@pytest.mark.slow
def test_a_cancelled_call_ends_its_command(tmp_path: Path) -> None:
    target = write_job(tmp_path)
    before = children()
    seen: list[int] = []

    async def main() -> None:
        async with Client(make_server(tmp_path)) as client:
            with anyio.CancelScope() as scope:

                async def cancel_at_work(progress: float, total: float | None, message: str | None) -> None:
                    if progress >= 1:
                        seen.append(len(children() - before))
                        scope.cancel()

                await client.call_tool("tune", {"target": target, "budget": "5m"}, progress_callback=cancel_at_work)
            with anyio.fail_after(40):
                while children() - before:  # noqa: ASYNC110 - processes set no event
                    await anyio.sleep(0.1)

    asyncio.run(main())
    assert seen[0] > 0
