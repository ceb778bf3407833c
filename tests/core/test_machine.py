"""The machine's resources are read from fake /proc and control group trees, so that every limit can be tested."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from hasten.core.machine import (
    Machine,
    Reading,
    read_cores,
    read_cpu_flags,
    read_cxx_compiler,
    read_machine,
    read_memory_limit,
)

MIB = 1024**2
CPUINFO = """\
processor\t: 0
model name\t: AMD EPYC 9B14
flags\t\t: fpu sse2 avx2 f16c avx512f avx512_bf16
processor\t: 1
model name\t: AMD EPYC 9B14
flags\t\t: fpu sse2 avx2 f16c avx512f avx512_bf16
"""


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def fake_proc(root: Path, cgroup: str = "0::/\n", **more: str) -> Path:
    memory = {"meminfo": "MemTotal:       8192 kB\nMemFree:        1 kB\n"}
    return write_tree(root / "proc", {"self/cgroup": cgroup, **memory, **more})


def cores(proc: Path, cgroup: Path, affinity: int = 8, **environ: str) -> Reading[int]:
    return read_cores(proc=proc, cgroup=cgroup, environ=environ, affinity=affinity)


def test_without_a_quota_cores_follow_affinity(tmp_path: Path) -> None:
    reading = cores(fake_proc(tmp_path), write_tree(tmp_path / "cg", {"cpu.max": "max 100000\n"}))
    assert reading.value == 8
    assert "affinity" in reading.reason


@pytest.mark.parametrize(
    ("cgroup_line", "files"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}),
        ("0::/job\n", {"cpu.max": "max 100000\n", "job/cpu.max": "150000 100000\n"}),
        ("0::/job\n", {"unified/job/cpu.max": "150000 100000\n"}),
        ("0::/../other\n", {"cpu.max": "150000 100000\n"}),
        (
            "3:cpu,cpuacct:/job\n",
            {"cpu,cpuacct/job/cpu.cfs_quota_us": "150000\n", "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n"},
        ),
        ("3:cpu,cpuacct:/gone\n", {"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}),
    ],
    ids=["v2 root", "v2 nested", "v2 in a hybrid", "v2 namespace", "v1", "v1, the path is the host's"],
)
def test_a_quota_of_one_and_a_half_cores_gives_one(tmp_path: Path, cgroup_line: str, files: dict[str, str]) -> None:
    reading = cores(fake_proc(tmp_path, cgroup_line), write_tree(tmp_path / "cg", files))
    assert reading.value == 1
    assert "quota of 1.5 cores" in reading.reason


def test_the_tightest_group_around_the_process_counts(tmp_path: Path) -> None:
    tree = {"cpu.max": "max 100000", "a/cpu.max": "200000 100000", "a/b/cpu.max": "600000 100000"}
    reading = cores(fake_proc(tmp_path, "0::/a/b\n"), write_tree(tmp_path / "cg", tree))
    assert reading.value == 2
    assert str(Path("a", "cpu.max")) in reading.reason


def test_a_sibling_group_does_not_count(tmp_path: Path) -> None:
    tree = {"a/cpu.max": "max 100000", "b/cpu.max": "100000 100000"}
    assert cores(fake_proc(tmp_path, "0::/a\n"), write_tree(tmp_path / "cg", tree)).value == 8


def test_version_one_without_limit_is_minus_one(tmp_path: Path) -> None:
    tree = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert cores(fake_proc(tmp_path, "1:cpu:/\n"), write_tree(tmp_path / "cg", tree)).value == 8


@pytest.mark.parametrize(("ranks", "expected"), [("1", 8), ("2", 4), ("3", 2), ("100", 1), ("", 8), ("0", 8), ("many", 8)])
def test_cores_are_shared_by_local_ranks(tmp_path: Path, ranks: str, expected: int) -> None:
    reading = cores(fake_proc(tmp_path), tmp_path, LOCAL_WORLD_SIZE=ranks)
    assert reading.value == expected
    assert ("local ranks" in reading.reason) == (expected < 8)


def test_a_quota_is_shared_before_it_is_rounded(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "cg", {"cpu.max": "450000 100000"})
    assert cores(fake_proc(tmp_path), tree, LOCAL_WORLD_SIZE="3").value == 1
    assert cores(fake_proc(tmp_path), tree, LOCAL_WORLD_SIZE="2").value == 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_the_real_affinity_is_asked(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert read_cores(proc=fake_proc(tmp_path), cgroup=tmp_path, environ={}).value == 1
    finally:
        os.sched_setaffinity(0, before)
    assert read_cores(proc=fake_proc(tmp_path), cgroup=tmp_path, environ={}).value == len(before)


@pytest.mark.parametrize(
    ("cgroup_line", "files", "expected", "reason"),
    [
        ("0::/\n", {"memory.max": "max\n"}, 8 * MIB, "physical"),
        ("0::/a\n", {"memory.max": "max\n", "a/memory.max": f"{2 * MIB}\n"}, 2 * MIB, "memory.max"),
        ("0::/a/b\n", {"a/memory.max": f"{3 * MIB}\n", "a/b/memory.max": f"{4 * MIB}\n"}, 3 * MIB, "memory.max"),
        ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": f"{5 * MIB}\n"}, 5 * MIB, "limit_in_bytes"),
        ("4:memory:/a\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 8 * MIB, "physical"),
    ],
    ids=["no limit", "nested", "the outer is tighter", "v1", "v1 without limit"],
)
def test_memory_is_the_least_of_the_limits(
    tmp_path: Path, cgroup_line: str, files: dict[str, str], expected: int, reason: str
) -> None:
    reading = read_memory_limit(proc=fake_proc(tmp_path, cgroup_line), cgroup=write_tree(tmp_path / "cg", files))
    assert reading.value == expected
    assert reason in reading.reason


def test_the_address_space_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (MIB, MIB) if which == resource.RLIMIT_AS else (-1, -1))
    reading = read_memory_limit(proc=fake_proc(tmp_path), cgroup=tmp_path)
    assert reading.value == MIB
    assert "ulimit" in reading.reason


def test_the_processor_is_read(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, cpuinfo=CPUINFO)
    machine = read_machine(proc=proc, cgroup=tmp_path, environ={})
    assert machine.cpu_model.value == "AMD EPYC 9B14"
    assert machine.cpu_flags == {"avx2", "f16c", "avx512f", "avx512_bf16"}
    assert machine.memory_limit_bytes.value == 8 * MIB


def test_an_arm_processor_calls_its_flags_features(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, cpuinfo="processor\t: 0\nFeatures\t: fp asimd asimdhp bf16\nCPU part\t: 0xd4f\n")
    assert read_cpu_flags(proc) == {"asimd", "asimdhp", "bf16"}
    assert "names none" in read_machine(proc=proc, cgroup=tmp_path, environ={}).cpu_model.reason


@pytest.mark.skipif(torch.accelerator.is_available(), reason="here training would use the accelerator")
@pytest.mark.parametrize(
    ("flags", "bfloat16", "float16"),
    [
        ("avx2 f16c", False, False),
        ("avx512_bf16", True, False),
        ("amx_bf16 amx_fp16", True, True),
        ("asimd bf16", True, False),
    ],
)
def test_half_types_are_native_only_with_the_instructions(tmp_path: Path, flags: str, bfloat16: bool, float16: bool) -> None:
    machine = read_machine(proc=fake_proc(tmp_path, cpuinfo=f"flags : {flags}\n"), cgroup=tmp_path, environ={})
    assert machine.bfloat16.value is bfloat16
    assert machine.float16.value is float16
    assert ("emulated" in machine.bfloat16.reason) == (not bfloat16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_accelerator_is_named() -> None:
    machine = read_machine()
    assert machine.accelerators.value == tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    assert machine.bfloat16.value == torch.cuda.is_bf16_supported(including_emulation=False)
    assert machine.accelerators.value[0] in machine.summary()


def test_without_proc_every_reading_still_has_a_value_and_a_reason(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    machine = read_machine(proc=nowhere, cgroup=nowhere, shared_memory=nowhere, environ={})
    assert machine.cores.value >= 1
    assert machine.memory_limit_bytes.value > 0
    assert machine.cpu_model.value
    assert f"no {nowhere / 'cpuinfo'}" in machine.cpu_model.reason
    assert f"no {nowhere}" in machine.shared_memory_bytes.reason


def tool(folder: Path, name: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_the_compiler_is_the_one_torch_compile_finds(tmp_path: Path) -> None:
    path = str(tmp_path)
    none = read_cxx_compiler({"PATH": path}, system="Linux")
    assert none.value is None
    assert "install g++" in none.reason
    clang = tool(tmp_path, "clang++")
    other = read_cxx_compiler({"PATH": path}, system="Linux")
    assert other.value is None
    assert "set CXX=clang++" in other.reason
    assert read_cxx_compiler({"PATH": path}, system="Darwin").value == clang
    gxx = tool(tmp_path, "g++")
    assert read_cxx_compiler({"PATH": path}, system="Linux").value == gxx
    assert read_cxx_compiler({"PATH": path, "CXX": clang}, system="Linux").value == clang
    wrong = read_cxx_compiler({"PATH": path, "CXX": "icpx"}, system="Linux")
    assert wrong.value is None
    assert "unset CXX" in wrong.reason


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return read_machine(proc=fake_proc(tmp_path, cpuinfo=CPUINFO), cgroup=tmp_path, environ={})


def test_the_summary_is_one_line(machine: Machine) -> None:
    made = dataclasses.replace(
        machine,
        cores=Reading(2, ""),
        accelerators=Reading((), ""),
        memory_limit_bytes=Reading(24 * 1024 * MIB, ""),
        torch_version="2.13.0",
    )
    assert made.summary() == "2 cores, AMD EPYC 9B14, 24.0 GiB, torch 2.13.0"
    with_gpus = dataclasses.replace(made, cores=Reading(1, ""), accelerators=Reading(("H200", "H200"), ""))
    assert with_gpus.summary() == "1 core, AMD EPYC 9B14, 2x H200, 24.0 GiB, torch 2.13.0"


def test_a_machine_goes_through_json(machine: Machine) -> None:
    carried = json.loads(json.dumps(machine.to_dict()))
    assert carried == machine.to_dict()
    assert set(carried) == {field.name for field in dataclasses.fields(Machine)}
    assert carried["cores"] == {"value": machine.cores.value, "reason": machine.cores.reason}
    assert carried["cpu_flags"] == sorted(machine.cpu_flags)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"shared_memory_bytes": Reading(1, "other")}, True),
        ({"cores": Reading(64, "other")}, False),
        ({"cpu_model": Reading("other", "")}, False),
        ({"cpu_flags": frozenset({"sve"})}, False),
        ({"accelerators": Reading(("other",), "")}, False),
        ({"torch_version": "1.0"}, False),
    ],
    ids=["shared memory", "cores", "model", "flags", "accelerators", "torch"],
)
def test_the_fingerprint_is_of_what_makes_timings_comparable(
    machine: Machine, change: dict[str, object], same: bool
) -> None:
    changed = dataclasses.replace(machine, **change)  # type: ignore[arg-type]
    assert (changed.fingerprint() == machine.fingerprint()) is same
    reworded = dataclasses.replace(machine, cores=Reading(machine.cores.value, "another reason"))
    assert reworded.fingerprint() == machine.fingerprint()
