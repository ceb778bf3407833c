"""Test which allocators are offered, and the environment variables that they set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.core.card import StepTrace
from hasten.core.errors import MachineError
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit
from hasten.core.system import glibc_version
from hasten.optimizations.allocator import Allocator
from tests.optimizations.contract import Images, facts, make_loop

JEMALLOC, TCMALLOC = "/usr/lib/libjemalloc.so.2", "/opt/lib/libtcmalloc_minimal.so.4"


@pytest.mark.parametrize(
    ("c_library", "installed", "expected"),
    [
        ("glibc 2.36", (), ["glibc_tuned"]),
        ("glibc 2.36", (JEMALLOC, TCMALLOC), ["glibc_tuned", "tcmalloc", "jemalloc"]),
        ("", (JEMALLOC,), ["jemalloc"]),
        ("glibc 2.31", ("/opt/lib/libtcmalloc.so.4",), ["tcmalloc"]),
    ],
)
def test_the_c_library_comes_first_then_installed_allocators(
    c_library: str, installed: tuple[str, ...], expected: list[str]
) -> None:
    fit = Allocator.fit(facts(on={"c_library": c_library, "allocators": installed}))
    assert [setting.settings()["kind"] for setting in fit.settings] == expected


def test_the_kernels_time_tells_whether_the_c_librarys_settings_are_worth_a_trial() -> None:
    def fit(kernel_frac: float | None) -> Fit:
        return Allocator.fit(facts(on={"c_library": "glibc 2.36", "allocators": (JEMALLOC,)}, kernel_frac=kernel_frac))

    assert [setting.settings()["kind"] for setting in fit(0.002).settings] == ["jemalloc"]
    assert len(fit(0.02).settings) == len(fit(None).settings) == 2
    assert (fit(None).prior, fit(0.02).prior) == (None, None)
    assert (fit(0.2).prior or 0.0) > Allocator.card.prior


def test_on_cuda_only_growing_segments_are_offered() -> None:
    fit = Allocator.fit(facts(job={"device": "cuda"}, on={"torch_build": "cuda 12.8", "allocators": (JEMALLOC,)}))
    assert fit.settings == (Allocator(kind="cuda_expandable"),)
    assert fit.settings[0].environment() == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


@pytest.mark.parametrize(
    ("words", "numbers"), [("glibc 2.36", (2, 36)), ("glibc 2.4", (2, 4)), ("musl 1.2", ()), ("", ()), ("glibc", ())]
)
def test_versions_are_numbers(words: str, numbers: Any) -> None:
    assert glibc_version(words) == numbers


@pytest.mark.parametrize(
    ("kind", "name", "keep"),
    [
        ("jemalloc", "libjemalloc.so.2", {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}),
        ("tcmalloc", "libtcmalloc_minimal.so.4", {"TCMALLOC_RELEASE_RATE": "0"}),
    ],
)
def test_a_preload_names_the_installed_file_and_keeps_freed_memory(
    kind: Any, name: str, keep: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / name
    library.touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    assert Allocator(kind=kind).environment() == {"LD_PRELOAD": str(library), **keep}


def test_a_missing_library_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.optimizations.allocator.library_folders", lambda _: [Path("/nowhere")])
    with pytest.raises(MachineError, match=r"tcmalloc is not installed .*/nowhere.*remove allocator from the plan"):
        Allocator(kind="tcmalloc").environment()


def test_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kind must be glibc_tuned, .* not 'mimalloc'"):
        Allocator(kind="mimalloc")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["tcmalloc", "jemalloc", "cuda_expandable"])
def test_no_kind_is_found_in_a_plain_process(kind: Any) -> None:
    live: LiveJob = make_loop(Images()).live
    checks = Allocator(kind=kind).evidence(live, StepTrace())
    assert not all(check.passed for check in checks)
    assert all(check.seen for check in checks)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
@pytest.mark.slow
def test_segments_grow_on_a_gpu(tmp_path: Path) -> None:
    import inspect

    from hasten.core.plan import Plan
    from hasten.tune.trials.trial import Trial, TrialSetting

    setting = TrialSetting(target=f"{inspect.getfile(Images)}:Images", folder=tmp_path)
    with Trial(setting, Plan(optimizations=(Allocator(kind="cuda_expandable"),))) as trial:
        (check,) = trial.call("trace")["evidence"]["allocator"]
    assert check["passed"], check
