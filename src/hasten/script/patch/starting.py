"""Write what is set once for the process: threads, denormals, precision of products, cuDNN, the garbage collector."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from hasten.optimizations.cpu_threads import CPUThreads
from hasten.optimizations.cudnn_benchmark import CudnnBenchmark
from hasten.optimizations.flush_denormals import FlushDenormals
from hasten.optimizations.garbage_collection import GarbageCollection
from hasten.optimizations.matmul_precision import MatmulPrecision
from hasten.script.patch.edits import Changes
from hasten.script.patch.find import training_loops
from hasten.script.patch.project import Project
from hasten.script.patch.scopes import Scope
from hasten.script.patch.source import Edit, UnwritableError

SWITCHES: Mapping[str, tuple[str, ...]] = {
    "tf32": ("cuda.matmul", "cudnn.conv", "cudnn.rnn"),
    "bf16": ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"),
}
"""What holds `fp32_precision`, below torch.backends, by the kind of arithmetic."""
_OLDER = ("torch.set_float32_matmul_precision", "torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32")


def cpu_threads(changes: Changes, item: CPUThreads) -> str:
    """`torch.set_num_threads(N)`."""
    return set_once(changes, "torch.set_num_threads", str(item.num_threads))


def flush_denormals(changes: Changes, _: FlushDenormals) -> str:
    """`torch.set_flush_denormal(True)`, before the other threads are made: they take it over."""
    return set_once(changes, "torch.set_flush_denormal", "True")


def cudnn_benchmark(changes: Changes, _: CudnnBenchmark) -> str:
    """`torch.backends.cudnn.benchmark = True`."""
    project, name = changes.project, "torch.backends.cudnn.benchmark"
    asked = _assigned(project, "torch.backends.cudnn.deterministic")
    asked = [(value, scope) for value, scope in asked if not (isinstance(value, ast.Constant) and value.value is False)]
    if wanted := [*asked, *project.calls_of("torch.use_deterministic_algorithms")]:
        where = wanted[0][1].source.line_of(wanted[0][0])
        raise UnwritableError(f"the script asks for deterministic kernels ({where})", f"{name} = True")
    known = _assigned(project, name)
    if len(known) > 1:
        raise UnwritableError(f"{name} is set in more than one place", f"{name} = True")
    for value, scope in known:
        return _replaced(changes, value, scope, "True", name)
    return _at_the_top(changes, {name: "True"})


def matmul_precision(changes: Changes, item: MatmulPrecision) -> str:
    """`fp32_precision` of the libraries that compute products and convolutions."""
    project = changes.project
    names = [f"torch.backends.{owner}.fp32_precision" for owner in SWITCHES[item.kind]]
    lines = [f'{name} = "{item.kind}"' for name in names]
    older = project.calls_of(_OLDER[0]) + _assigned(project, _OLDER[1]) + _assigned(project, _OLDER[2])
    if older:
        where = older[0][1].source.line_of(older[0][0])
        raise UnwritableError(f"PyTorch refuses to mix these switches with the older ones that are set at {where}", *lines)
    known = [found for name in names for found in _assigned(project, name)]
    if known:
        where = known[0][1].source.line_of(known[0][0])
        raise UnwritableError(f"fp32_precision is set already ({where})")
    return _at_the_top(changes, dict.fromkeys(names, f'"{item.kind}"'))


def garbage_collection(changes: Changes, item: GarbageCollection) -> str:
    """`gc.freeze()` and a higher threshold before the training, or the collector off and one collection an epoch."""
    project = changes.project
    for name in ("gc.freeze", "gc.disable"):
        for call, scope in project.calls_of(name):
            raise UnwritableError(f"{name}() is called already ({scope.source.line_of(call)})")
    lines = _collector_lines(item, "gc")
    try:
        loops = training_loops(project)
    except UnwritableError as error:
        raise UnwritableError(error.reason, "before the training:", *lines) from error
    outer = loops[-1]
    source = outer.scope.source
    gc = changes.spell("gc.collect", outer.scope).removesuffix(".collect")
    if item.mode == "epoch":
        if len(loops) < 2:
            raise UnwritableError("the training is one loop, without one over epochs around it", *lines, f"{gc}.collect()")
        inner = loops[-2]
        again = changes.spell("gc.collect", inner.scope)
        changes.before(source.statement(outer.node), source, *_collector_lines(item, gc))
        changes.before(inner.scope.source.statement(inner.node), inner.scope.source, f"{again}()")
        return f"the collector is off from {outer.words} on, and garbage is collected before each pass of {inner.words}"
    changes.before(source.statement(outer.node), source, *_collector_lines(item, gc))
    return f"gc.freeze() and a threshold of {item.threshold} before the loop at {outer.words}"


def _collector_lines(item: GarbageCollection, gc: str) -> list[str]:
    if item.mode == "epoch":
        return [f"{gc}.disable()"]
    return [f"{gc}.collect()", f"{gc}.freeze()", f"{gc}.set_threshold({item.threshold}, *{gc}.get_threshold()[1:])"]


def set_once(changes: Changes, dotted: str, value: str) -> str:
    """One call with one argument: that of the script is changed, or a new one comes below the imports."""
    project = changes.project
    known = project.calls_of(dotted)
    if len(known) > 1:
        places = ", ".join(scope.source.line_of(call) for call, scope in known)
        raise UnwritableError(f"{dotted} is called in more than one place ({places})", f"{dotted}({value})")
    for call, scope in known:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if len(given) != 1:
            raise UnwritableError(f"{scope.source.line_of(call)} calls it in another way", f"{dotted}({value})")
        return _replaced(changes, given[0], scope, value, dotted)
    script = changes.project.script
    name = changes.spell(dotted, project.scopes(script).module, top=True)
    changes.setting(script, f"{name}({value})")
    return f"{dotted}({value}) below the imports of {script.path.name}"


def _at_the_top(changes: Changes, values: Mapping[str, str]) -> str:
    script = changes.project.script
    module = changes.project.scopes(script).module
    lines = [f"{changes.spell(name, module, top=True)} = {value}" for name, value in values.items()]
    changes.setting(script, *lines)
    return f"{', '.join(f'{name} = {value}' for name, value in values.items())} below the imports of {script.path.name}"


def _replaced(changes: Changes, value: ast.expr, scope: Scope, new: str, name: str) -> str:
    source = scope.source
    was = source.segment(value)
    if was == new:
        raise UnwritableError(f"{name} is {new} already ({source.line_of(value)})")
    changes.add(source, Edit(source.start(value), source.end(value), new))
    return f"{name}: {new} (was {was}) at {source.line_of(value)}"


def _assigned(project: Project, dotted: str) -> list[tuple[ast.expr, Scope]]:
    """The values that are assigned to an attribute of something outside."""
    found = []
    for source in project.sources.values():
        for target, bind, scope in project.scopes(source).attributes.get(dotted.rpartition(".")[2], []):
            if bind.value is not None and project.dotted(target, scope) == dotted:
                found.append((bind.value, scope))
    return found
