"""`hasten size`: parameters, memory and time of a model before it exists, and the nearest valid sizes."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hasten.cli.command import JsonOption
from hasten.cli.say import console, give_json, progress_bar, say
from hasten.core.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hasten.size.memory import Memory, Setup
    from hasten.size.shape import Shape
    from hasten.size.solve import Fit

SHOWN = 10
Row = dict[str, Any]


def size(
    target_job: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="A job, package.module:Job or path/file.py:Job, or none.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Blocks of a described transformer.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Width of a token.")] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads per layer.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Key and value heads per layer. Default: as many as heads.")] = None,
    ffn: Annotated[int | None, typer.Option(help="Width of the feed-forward network. Default: 4 x hidden.")] = None,
    vocab: Annotated[int, typer.Option(help="Tokens of the vocabulary.")] = 32000,
    swiglu: Annotated[bool, typer.Option("--swiglu", help="Gated form, as in Llama: SwiGLU, RMSNorm, no biases.")] = False,
    experts: Annotated[int, typer.Option(help="Feed-forward networks per layer (mixture of experts).")] = 1,
    active_experts: Annotated[int, typer.Option(help="Experts that each token passes through.")] = 1,
    tied: Annotated[bool, typer.Option("--tied", help="Use the token embedding as the output layer.")] = False,
    target: Annotated[str | None, typer.Option(help="Find transformers of this size: 13.14B, 350M.")] = None,
    fit: Annotated[str | None, typer.Option(help="Find what trains on these devices: '80GB x 8'.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say why the sizes are invalid, and which are near.")] = False,
    growth: Annotated[bool, typer.Option("--growth", help="Show what doubling each size does.")] = False,
    sharding: Annotated[str, typer.Option(help="none, ddp, fsdp2, hsdp, or offload (FSDP2 with CPU offload).")] = "none",
    ranks: Annotated[int, typer.Option(min=1, help="Number of devices.")] = 1,
    shards: Annotated[int, typer.Option(min=1, help="Ranks in a group of hsdp.")] = 8,
    precision: Annotated[str, typer.Option(help="mixed (bfloat16 over float32 weights), float32, bfloat16.")] = "mixed",
    states: Annotated[str, typer.Option(help="Optimizer states: adam, adam-8bit, momentum, none.")] = "adam",
    recompute: Annotated[bool, typer.Option("--recompute", help="Full activation checkpointing.")] = False,
    plain_attention: Annotated[bool, typer.Option("--plain-attention", help="Attention that stores its scores.")] = False,
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences (samples of a job) per device.")] = None,
    length: Annotated[int, typer.Option(min=2, help="Tokens of a sequence.")] = 4096,
    fragmentation: Annotated[float, typer.Option(help="Assumed waste, as a share of the memory that varies.")] = 0.05,
    tokens: Annotated[str | None, typer.Option(help="Tokens to train on: 260B. Gives the time, with --peak.")] = None,
    peak: Annotated[str | None, typer.Option(help="Peak operations per second of a device: 989T.")] = None,
    utilisation: Annotated[float, typer.Option(min=0.001, max=1.0, help="Share of the peak that is reached.")] = 0.4,
    html: Annotated[Path | None, typer.Option(help="Write a page with the memory as stacked bars.")] = None,
    json: JsonOption = None,
) -> None:
    """Say what a model takes to train before it exists: parameters, memory per device, operations and time.

    Give a job, or describe a transformer: --layers 51 --hidden 4608 --heads 36. Nothing is allocated.
    """
    from hasten.size.memory import Setup
    from hasten.size.shape import Shape
    from hasten.size.solve import number

    setup = Setup(
        sharding=sharding, ranks=ranks, shards=shards, precision=precision, states=states, recomputed=recompute,  # type: ignore[arg-type]
        flash=not plain_attention, batch=batch or 1, length=length, fragmentation=fragmentation,
    )  # fmt: skip
    sizes = {"layers": layers, "hidden": hidden, "heads": heads}
    missing = [f"--{name}" for name, value in sizes.items() if value is None]
    form: Row = {"vocab": vocab, "gated": swiglu, "experts": experts, "active": active_experts, "tied": tied}
    if target_job is not None:
        if len(missing) < len(sizes) or target or explain or growth or tokens:
            raise JobError("A job takes no sizes of a transformer, and no --target, --explain, --growth or --tokens.")
        found = _of_job(target_job, setup, batch, fit)
    elif target is not None:
        like = Shape(layers=1, hidden=128, heads=1, **form)
        found = _solved(number(target, "--target"), like, either_form=not swiglu, either_tied=not tied)
    elif not missing:
        shape = Shape(layers=layers or 0, hidden=hidden or 0, heads=heads or 0, kv_heads=kv_heads, ffn=ffn, **form)
        if (tokens is None) != (peak is None):
            raise JobError("--tokens and --peak give the time together: --tokens 260B --peak 989T.")
        time = None if tokens is None else (number(tokens, "--tokens"), number(peak or "", "--peak"), utilisation)
        found = _explained(shape) if explain else _of_shape(shape, setup, fit, time, growth=growth)
    elif fit is not None and len(missing) == len(sizes):
        found = _largest(Shape(layers=1, hidden=128, heads=1, **form), setup, fit)
    else:
        raise JobError(
            f"Nothing to size: {', '.join(missing)} missing. Give a job, --layers, --hidden and --heads, --target or --fit."
        )
    if html is not None:
        from hasten.report.size import write_size_page

        write_size_page(found, html)
    if not give_json(json, found):
        _show(found)
        if html is not None:
            say(f"page: {html}")


def _model(shape: Shape) -> Row:
    sizes = {**asdict(shape), "kv_heads": shape.groups, "ffn": shape.inner}
    return {
        "words": shape.words(), **sizes, "parameters": shape.parameters, "active_parameters": shape.active_parameters,
        "slow": list(shape.warnings()),
    }  # fmt: skip


def _memory(setup: Setup, memory: Memory) -> Row:
    return {
        "setup": setup.words(), **asdict(setup), "peak_bytes": memory.peak, "peak_phase": memory.peak_phase,
        "host_bytes": memory.host_bytes, "moments": {phase: dict(parts) for phase, parts in memory.moments.items()},
    }  # fmt: skip


def _of_shape(shape: Shape, setup: Setup, fit: str | None, time: Any, *, growth: bool) -> Row:
    from hasten.size import solve
    from hasten.size.memory import memory_of

    shape.check()
    flops = shape.flops_per_token(setup.length)
    found: Row = {"model": _model(shape), "memory": _memory(setup, memory_of(shape, setup)), "flops_per_token": flops}
    if time is not None:
        num_tokens, peak, utilisation = time
        found["hours"] = flops * num_tokens / (peak * utilisation * setup.ranks) / 3600
        found |= {"tokens": num_tokens, "peak_flops_per_s": peak, "utilisation": utilisation}
    if growth:
        found["growth"] = solve.grown(shape, setup)
    if fit is not None:
        num_bytes, ranks = solve.devices(fit)
        found["fits"] = _fit_rows(solve.fit(shape, setup, num_bytes, ranks), len(list(solve.setups(setup, ranks))))
        least = replace(setup, sharding="none", ranks=1, precision="mixed", states="adam", recomputed=True)
        found |= {"devices": fit, "fewest_fsdp2": solve.fewest_devices(shape, least, num_bytes)}
    return found


def _fit_rows(fits: Iterator[Fit], count: int) -> list[Row]:
    rows = []
    with progress_bar("finding what trains", count) as advance:
        for fit in fits:
            rows.append({"fits": fit.fits, "model": _model(fit.shape), "memory": _memory(fit.setup, fit.memory)})
            advance(1)
    return rows


def _largest(like: Shape, setup: Setup, fit: str) -> Row:
    from hasten.size.solve import devices, largest, setups

    num_bytes, ranks = devices(fit)
    count = sum(one.recomputed for one in setups(setup, ranks))
    return {"devices": fit, "largest": _fit_rows(largest(like, setup, num_bytes, ranks), count)}


def _solved(target: float, like: Shape, *, either_form: bool, either_tied: bool) -> Row:
    from hasten.size.solve import solve

    shapes = solve(target, like, either_form=either_form, either_tied=either_tied)
    rows = [{**_model(shape), "error_frac": shape.parameters / target - 1} for shape in shapes]
    return {"target_parameters": target, "candidates": rows}


def _explained(shape: Shape) -> Row:
    from hasten.size.solve import nearest

    return {"model": _model(shape), "problems": list(shape.problems()), "nearest": [_model(near) for near in nearest(shape)]}


def _of_job(target: str, setup: Setup, batch: int | None, fit: str | None) -> Row:
    from hasten.core.target import load_job
    from hasten.size.job import trace_job
    from hasten.size.memory import on_each_device
    from hasten.size.solve import devices, setups, usable

    if setup.precision != "mixed" or setup.states != "adam" or setup.recomputed or not setup.flash:
        raise JobError(
            "A job has its own precision, states, checkpointing and attention: those options are for a transformer."
        )
    job = load_job(target)
    traced = trace_job(job, batch or -(-job.batch_size // setup.ranks))
    model = {"words": target, "parameters": traced.weights.total, "active_parameters": traced.weights.total, "slow": []}

    def row(one: Setup) -> Row:
        memory = _memory(one, on_each_device(traced.trace, traced.weights, one))
        return {**memory, "setup": f"{one.place()}, {traced.batch} samples"}

    found: Row = {
        "model": model, "memory": row(replace(setup, batch=traced.batch)), "ran": traced.ran,
        "flops_per_sample": traced.trace.flops / traced.batch,
    }  # fmt: skip
    if fit is not None:
        num_bytes, ranks = devices(fit)
        same = (
            one for one in setups(setup, ranks) if (one.precision, one.states, one.recomputed) == ("mixed", "adam", False)
        )
        rows = [row(replace(one, batch=traced.batch)) for one in same]
        found["devices"] = fit
        found["fits"] = [{"fits": one["peak_bytes"] <= usable(num_bytes), "model": model, "memory": one} for one in rows]
    return found


def _show(found: Row) -> None:
    if "problems" in found:
        _show_explained(found)
    elif "candidates" in found:
        say(f"{found['target_parameters'] / 1e9:.4g} billion parameters, within 0.1 %: the {SHOWN} most suitable")
        rows = found["candidates"][:SHOWN]
        _table(
            ("transformer", "parameters", "error"),
            [(row["words"], f"{row['parameters'] / 1e9:.4f} B", f"{row['error_frac']:+.3%}") for row in rows],
        )
    elif "largest" in found:
        say(f"The largest transformers (128 hidden values per layer) that train on {found['devices']}, with --recompute:")
        _show_fits(found["largest"], with_model=True)
    else:
        _show_model(found)


def _show_explained(found: Row) -> None:
    model, problems = found["model"], found["problems"]
    say(f"{model['words']}: {model['parameters']:,} parameters")
    for words in problems:
        say(f"  invalid: {words}")
    for words in model["slow"]:
        say(f"  slow: {words}")
    if not problems and not model["slow"]:
        say("  valid, and all sizes suit the hardware")
    say("Nearest valid sizes:")
    _table(("transformer", "parameters", "change"), [
        (near["words"], f"{near['parameters'] / 1e9:.4f} B", f"{near['parameters'] / model['parameters'] - 1:+.2%}")
        for near in found["nearest"]
    ])  # fmt: skip


def _show_model(found: Row) -> None:
    from hasten.report.words import bytes_words

    model, memory = found["model"], found["memory"]
    active = model["active_parameters"]
    each = f", {active:,} of them for each token" if active != model["parameters"] else ""
    say(f"{model['words']}: {model['parameters']:,} parameters{each}")
    for words in model["slow"]:
        say(f"  slow: {words}")
    if found.get("ran"):
        say(f"  The update ran on real tensors, because fake ones failed: {found['ran']}")
    say(f"Memory of each device: {bytes_words(memory['peak_bytes'])} ({memory['setup']})")
    phases = list(memory["moments"])
    parts = list(memory["moments"][phases[0]])
    rows = [(part, *(bytes_words(memory["moments"][phase][part]) for phase in phases)) for part in parts]
    totals = ("together", *(bytes_words(sum(memory["moments"][phase].values())) for phase in phases))
    _table(("at the peak of", *phases), [*rows, totals])
    if memory["host_bytes"]:
        say(f"Host memory per device: {bytes_words(memory['host_bytes'])}")
    for unit in ("token", "sample"):
        if (flops := found.get(f"flops_per_{unit}")) is not None:
            say(f"Operations: {flops:.4g} FLOPs per {unit}, forward and backward")
    if "hours" in found:
        where = f"{memory['ranks']} device{'s' if memory['ranks'] > 1 else ''}"
        speed = f"{found['utilisation']:.0%} of {found['peak_flops_per_s'] / 1e12:g} TFLOP/s"
        say(f"Time: {found['hours'] / 24:,.1f} days for {found['tokens']:.4g} tokens on {where} at {speed}")
    if "growth" in found:
        _table(("when doubled", "parameters", "FLOPs per update", "activations", "peak memory"), [
            (row["doubled"], *(f"{row[key]:.2f}x" for key in ("parameters", "flops", "activations", "peak")))
            for row in found["growth"]
        ])  # fmt: skip
    if "fits" in found:
        _show_fits(found["fits"], with_model=False)
        if (least := found.get("fewest_fsdp2")) is not None:
            say(f"Full states in mixed precision with --recompute need at least {least} such devices under FSDP2.")


def _show_fits(rows: Sequence[Row], *, with_model: bool) -> None:
    from hasten.report.words import bytes_words

    _table(("setup", "model" if with_model else "trains", "batch", "peak", "host"), [
        (
            row["memory"]["setup"],
            f"{row['model']['parameters'] / 1e9:.1f} B" if with_model and row["fits"] else ("yes" if row["fits"] else "no"),
            str(row["memory"]["batch"]) if row["fits"] else "",
            bytes_words(row["memory"]["peak_bytes"]),
            bytes_words(row["memory"]["host_bytes"]) if row["memory"]["host_bytes"] else "",
        )
        for row in rows
    ])  # fmt: skip


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left", no_wrap=bool(place))
    for row in rows:
        table.add_row(*row)
    console.print(table)
