"""The benchmark of the data layer: every system gives the same samples, and goals are judged only by intervals."""

from __future__ import annotations

import json
import mmap
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks import record as record_module
from benchmarks import result_file
from benchmarks.data_layer import goals, result, run, system_memory, table
from benchmarks.data_layer.sizes import Sizes
from benchmarks.data_layer.systems import WORKLOADS
from benchmarks.data_layer.worker import digest

TINY = Sizes(talks=700, tokens=2**21, pictures=40, raw_pictures=40)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_system_that_is_installed_gives_the_same_samples(tmp_path: Path, workload: str) -> None:
    WORKLOADS[workload].write(tmp_path, TINY)
    systems = WORKLOADS[workload].there()
    found = {name: digest(system, tmp_path, 0.0) for name, system in systems.items()}
    first = found["Hasten"]
    samples = {name: one for name, one in found.items() if not systems[name].own_samples}
    assert {name: one["digest"] for name, one in samples.items()} == dict.fromkeys(samples, first["digest"])
    assert {one["count"] for one in found.values()} == {{"text": 700, "tokens": 2048}.get(workload, 40)}
    assert {one["num_bytes"] for one in found.values()} == {first["num_bytes"]}
    for name, system in systems.items():
        if system.against:
            assert found[name]["form"] == found[system.against]["form"], name
            assert all((tmp_path / file).exists() for file in system.files)


def measured(seconds: list[float], private: float = 1e6, digest: int = 7) -> dict[str, Any]:
    return {
        "warm": [{"seconds_per_sample": one} for one in seconds],
        "cold": [{"seconds_per_sample": 2 * one, "in_memory_before_frac": 0.0} for one in seconds],
        "memory": [{"private_bytes": private}, {"private_bytes": 2 * private}],
        "same": {"digest": digest, "count": 10, "num_bytes": 1000, "form": "list of str"},
        "commit": "abc",
    }


def rows(**others: Any) -> dict[str, Any]:
    found = {
        "Hasten": measured([1.0, 1.1, 0.9]),
        "Hasten, all mixed": measured([1.0, 1.1, 0.9]),
        "page cache": {"warm": [{"seconds_per_byte": 0.004}] * 3},
        **{name.replace("_", " "): value for name, value in others.items()},
    }
    return {f"text: {name}": {"name": f"text: {name}", "measured": one} for name, one in found.items()}


def verdict(found: dict[str, Any], goal: str) -> tuple[str, str]:
    (one,) = [one for one in found["goals"] if goal in one["goal"]]
    return one["verdict"], one["why"]


def test_a_goal_is_reached_by_its_lower_end_alone() -> None:
    def of(*seconds: float) -> str:
        return verdict(result.whole(rows(Hugging_Face=measured(list(seconds))), {}), "3x Hugging Face")[0]

    assert of(4.0, 4.4, 3.6) == "reached"
    assert of(2.0, 2.2, 1.8) == "missed"
    assert of(4.0, 2.2, 5.0) == "undecided"


def test_the_fastest_form_of_a_rival_counts() -> None:
    others = {"LitData": measured([40.0] * 3), "LitData, 2 workers": measured([4.0, 4.4, 3.6])}
    found, why = verdict(result.whole(rows(**others), {}), "strings: 5x LitData")
    assert found == "missed"
    assert why.endswith(" times LitData, 2 workers")


def test_a_rival_that_gives_other_samples_proves_nothing() -> None:
    found = result.whole(rows(LitData=measured([9.0] * 3, digest=8)), {})
    assert verdict(found, "strings: 5x LitData") == ("not measured", "LitData returns different samples")
    assert "| NO |" in table.tables({**found, "machine": "m", "row_commits": []})


def test_what_was_not_measured_is_said() -> None:
    found = result.whole(rows(), {})
    assert verdict(found, "tokens: 5x LitData")[0] == verdict(found, "3x Hugging Face")[0] == "not measured"
    assert [goal["verdict"] for goal in found["goals"] if goal["workload"] == "memory"] == ["not measured"]


def test_private_memory_is_that_of_the_worst_system() -> None:
    assert verdict(result.whole(rows(LitData=measured([9.0] * 3, private=1e9)), {}), "64 MiB")[0] == "reached"
    assert verdict(result.whole(rows(**{"Hasten, Arrow": measured([1.0] * 3, private=40e6)}), {}), "64 MiB") == (
        "missed",
        "at most 76 MiB (text: Hasten, Arrow)",
    )


def test_tables_are_complete() -> None:
    found = result.whole(rows(LitData=measured([9.0, 9.9, 8.1])), {})
    cost = {"hit_us": 1.0, "hit_many_us": 0.5, "miss_us": 1.0, "put_us": 2.0}
    for home, times in (("LMDB", 1), ("Redis", 30)):
        name = f"caches: 1 KiB: {home}"
        more = {"measured": {key: value * times for key, value in cost.items()}}
        found["rows"].append({"name": name, "workload": "caches", "system": f"1 KiB: {home}", **more})
    memory = {"within_limit": False, "limit_bytes": 2**30, "peak_private_bytes": None}
    found["goals"] += goals.judged([{"workload": "memory", "system": "an epoch", "measured": memory}])[-1:]
    text = table.tables({**found, "machine": "this machine", "row_commits": ["abc"]})
    assert "| LitData | chunks | 0 | 9.00x (9.00 to 9.00) | 0 | 9.00x (9.00 to 9.00) | 1 MiB | yes |" in text
    assert "| an epoch within 1,024 MiB of private memory | missed | ended when it used more than 1,024 MiB |" in text
    assert "Redis pays for a value of 1 KiB if making it takes more than 90 µs" in text
    assert "MosaicML Streaming: it needs torchvision" in text


def test_every_goal_names_systems_that_there_are() -> None:
    for goal in goals.GOALS:
        assert {goal.ours, *goal.rivals} <= set(WORKLOADS[goal.workload].systems)


def test_systems_of_a_round_come_in_another_order_each_time() -> None:
    plan = run._plan(["a", "b", "c"], Sizes(rounds=4, cold_rounds=2), random.Random(0))
    warm = [system for act, system in plan if act == "warm"]
    rounds = [warm[at : at + 4] for at in range(0, len(warm), 4)]
    assert [sorted(one) for one in rounds] == [["a", "b", "c", "page cache"]] * 4
    assert len(set(map(tuple, rounds))) > 1


def test_files_are_in_memory_or_not_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(50 * mmap.PAGESIZE + 1))
    files = system_memory.all_files(tmp_path, ["file"])
    system_memory.warm(files)
    with path.open("rb") as file:
        assert system_memory._resident(file.fileno()) == (51, 51)
    if (left := system_memory.evict(files)) == 1.0:
        pytest.skip("this folder is in memory, so its files cannot be evicted")
    assert left == 0.0


def test_memory_that_a_process_holds_is_counted_and_a_mapped_file_is_not(tmp_path: Path) -> None:
    path, process = tmp_path / "file", psutil.Process()
    path.write_bytes(bytes(32 * 2**20))
    before = system_memory.private_bytes(process)
    mapped = np.memmap(path, np.uint8, "r")
    assert int(mapped[:: mmap.PAGESIZE].sum()) == 0
    with_map = system_memory.private_bytes(process)
    # Allocated from the system: the allocator might reuse memory that this process already has.
    held = np.frombuffer(mmap.mmap(-1, 32 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    held[:] = 1
    assert with_map - before < 8 * 2**20
    assert system_memory.private_bytes(process) - with_map > 24 * 2**20
    assert held.all()


def test_a_process_beyond_its_limit_is_ended() -> None:
    code = """
import time
from benchmarks.data_layer.system_memory import watched
with watched(limit_bytes=LIMIT) as peak:
    while not peak.num_bytes:
        time.sleep(0.001)
    held = bytes(64 * 2**20)
    time.sleep(0.2)
"""
    ended = [
        subprocess.run([sys.executable, "-c", code.replace("LIMIT", limit)], check=False).returncode
        for limit in ("2**20", "2**40")
    ]
    assert ended == [system_memory.ENDED, 0]


def test_a_part_is_measured_again_as_a_whole_and_says_on_which_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (result_file, record_module):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(result_file, "measured_commit", lambda: "abc")
    asked: list[str] = []

    def measure(part: str, _sizes: Sizes) -> dict[str, Any]:
        asked.append(part)
        return {result.row_name(part, name): measured([1.0, 1.1]) for name in WORKLOADS[part].there()}

    monkeypatch.setattr(run, "measure", measure)
    run._record(["text", "tokens"], Sizes(), again=False)
    path = tmp_path / "data.json"
    there = json.loads(path.read_text())
    for row in there["rows"]:  # like an older file from another machine, with a rival that no longer exists
        del row["measured"]["where"]
    gone = {**there["rows"][-1], "name": "tokens: gone", "system": "gone"}
    there |= {"machine": "another one", "machine_fingerprint": "other", "rows": [*there["rows"], gone]}
    path.write_text(json.dumps(there))
    run._record(["tokens"], Sizes(), again=False)
    run._record(["tokens"], Sizes(), again=False)
    assert asked == ["text", "tokens", "tokens"]
    found = json.loads(path.read_text())
    machines = {
        part: {row["measured"]["where"]["machine"] for row in found["rows"] if row["workload"] == part}
        for part in ("text", "tokens")
    }
    assert machines == {"text": {"another one"}, "tokens": {found["machine"]}}
    assert "tokens: gone" not in {row["name"] for row in found["rows"]}
    assert f"Measured on another one (text) and {found['machine']} (tokens), at abc" in table.tables(found)
