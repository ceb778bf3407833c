"""Write what is done around the forward pass: autocast, the attention kernel, memory layout, torch.compile."""

from __future__ import annotations

import ast

from hasten.optimizations.attention_backend import AttentionBackend
from hasten.optimizations.channels_last import ChannelsLast
from hasten.optimizations.compile import Compile
from hasten.optimizations.precision import Precision
from hasten.script.patch.edits import Changes
from hasten.script.patch.flow import Origin, origins
from hasten.script.patch.model import Model, the_model
from hasten.script.patch.project import Project
from hasten.script.patch.scopes import Scope
from hasten.script.patch.source import UnwritableError
from hasten.script.patch.step import Step, forward_step, plain_inputs

AUTOCASTS = (
    "torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast", "torch.cuda.amp.autocast",
    "torch.cuda.amp.autocast_mode.autocast", "torch.cpu.amp.autocast",
)  # fmt: skip
BACKENDS = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH", "cudnn": "CUDNN_ATTENTION"}
"""The setting of attention_backend -> the name in torch.nn.attention.SDPBackend."""
ACCELERATORS = ("cuda", "mps", "xpu")
_KEEPS_NAMES = ("state_dict", "load_state_dict")


def precision(changes: Changes, item: Precision) -> str:
    """`with torch.autocast(...)` around the forward pass and the loss."""
    project = changes.project
    lines = (f"with torch.autocast(device_type, dtype=torch.{item.dtype}):", "    output = model(inputs)", "    loss = ...")
    for call, scope in project.calls_of(*AUTOCASTS):
        if any(part.arg == "enabled" and ast.unparse(part.value) == "False" for part in call.keywords):
            continue  # part of a model that keeps out of it
        raise UnwritableError(f"autocast is there already ({scope.source.line_of(call)})", f"dtype=torch.{item.dtype}")
    if item.dtype == "float16":
        scaler = ("scaler = torch.amp.GradScaler(device_type)", *lines, "scaler.scale(loss).backward()")
        raise UnwritableError(
            "float16 also needs a gradient scaler around the backward pass and the optimizer's step",
            *scaler, "scaler.step(optimizer)", "scaler.update()",
        )  # fmt: skip
    if item.attention == "float32":
        exact = ("with torch.autocast(device_type, enabled=False):", "    attention in float32, then .to(torch.bfloat16)")
        raise UnwritableError("attention stays in float32, which is a change within the model", *lines, *exact)
    step = _step(project, *lines)
    if step.library:
        raise UnwritableError(f"{step.library} runs the backward pass, and has a setting of its own for this", *lines)
    header = f"with {changes.spell('torch.autocast', step.scope)}({_device_type(project, step)}, "
    _wrap(changes, step, f"{header}dtype={changes.spell(f'torch.{item.dtype}', step.scope)}):")
    return f"the forward pass and the loss at {_lines(step)} under autocast in {item.dtype}"


def attention_backend(changes: Changes, item: AttentionBackend) -> str:
    """`with sdpa_kernel(...)` around the forward pass."""
    allowed = list(dict.fromkeys([BACKENDS[item.backend], "MATH"]))
    plain = ", ".join(f"SDPBackend.{name}" for name in allowed)
    project = changes.project
    lines = ("from torch.nn.attention import SDPBackend, sdpa_kernel", f"with sdpa_kernel([{plain}], set_priority=True):")
    for call, scope in project.calls_of("torch.nn.attention.sdpa_kernel"):
        raise UnwritableError(f"sdpa_kernel is there already ({scope.source.line_of(call)})", *lines)
    step = _step(project, *lines, "    output = model(inputs)")
    backend, kernel = changes.spell_all("torch.nn.attention", ("SDPBackend", "sdpa_kernel"), step.scope)
    _wrap(changes, step, f"with {kernel}([{plain.replace('SDPBackend', backend)}], set_priority=True):")
    return f"the forward pass at {_lines(step)} under sdpa_kernel, {' before '.join(allowed)}"


def channels_last(changes: Changes, _: ChannelsLast) -> str:
    """The model's weights converted once, and its inputs where they are plain names."""
    project = changes.project
    lines = ("model = model.to(memory_format=torch.channels_last)", "x = x.contiguous(memory_format=torch.channels_last)")
    for source in project.sources.values():
        for node, scope in project.scopes(source).of.items():
            if isinstance(node, ast.Attribute) and project.dotted(node, scope) == "torch.channels_last":
                raise UnwritableError(f"channels_last is there already ({source.line_of(node)})")
    model = _model(project, *lines)
    where = _near_model(changes, model, "first", "{model} = {model}.to(memory_format={format})")
    try:
        step = forward_step(project)
    except UnwritableError:
        return f"the weights {where}; the inputs not: no call of the model was seen"
    names = plain_inputs(step)
    form = changes.spell("torch.channels_last", step.scope)
    source = step.scope.source
    for name in names:
        changes.before(
            step.statements[0], source,
            f"if {name}.dim() == 4:",
            f"{source.indent_unit(step.statements[0])}{name} = {name}.contiguous(memory_format={form})",
        )  # fmt: skip
    inputs = f"{', '.join(names)} before {source.line_of(step.statements[0])}" if names else "not, which have no plain name"
    return f"the weights {where}; the inputs {inputs}"


def compile_model(changes: Changes, item: Compile) -> str:
    """`model.compile(...)`, which leaves the model as it is; `torch.compile(model, ...)` for torch's own classes."""
    project = changes.project
    settings = [f'mode="{item.mode}"'] if item.mode != "default" else []
    settings += {"yes": ["dynamic=True"], "no": ["dynamic=False"], "auto": []}[item.dynamic]
    given = ", ".join(settings)
    model = _model(project, f"model.compile({given})")
    for call, scope in project.calls:
        if _compiles(project, call, scope, model):
            raise UnwritableError(f"torch.compile is at work already ({scope.source.line_of(call)})")
    line = f"{{model}}.compile({given})"
    if _of_torch(project, model):
        arguments = f", {given}" if given else ""
        for call, scope in project.calls:
            if _asks_for_names(project, call, scope, model):
                raise UnwritableError(
                    f"a compiled module of torch's own class has other names in its state_dict "
                    f"({scope.source.line_of(call)}): compile it under another name, and call that in the loop",
                    f"compiled = torch.compile({model.text}{arguments})", "output = compiled(inputs)",
                )  # fmt: skip
        line = f"{{model}} = {changes.spell('torch.compile', (model.last or model.before).scope)}({{model}}{arguments})"
    inner = _of_torch(project, model) and any(_is_parallel(project, item) for item in model.calls)
    where = _near_model(changes, model, "first" if inner else "last", line)
    return f"{line.format(model=model.text)} {where}"


def _compiles(project: Project, call: ast.Call, scope: Scope, model: Model) -> bool:
    if project.called(call, scope) == "torch.compile":
        return True
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "compile" or project.called(call, scope):
        return False
    return _is_model(project, call.func.value, scope, model)


def _is_model(project: Project, expression: ast.expr, scope: Scope, model: Model) -> bool:
    made = {item.call for item in origins(project, expression, scope)}
    return ast.unparse(expression) == model.text or bool(made & {item.call for item in model.calls})


def _of_torch(project: Project, model: Model) -> bool:
    """Whether the module is one of torch's own (nn.Sequential), whose frames `Module.compile` passes over.

    It passes over those of DistributedDataParallel too, and then compiles what that wraps. torch.compile gives torch's
    own modules a frame around, but not where DistributedDataParallel stands between.
    """
    roots = [item for item in model.calls if not _is_parallel(project, item)]
    return bool(roots) and project.called(roots[0].call, roots[0].scope).startswith("torch.nn.")


def _is_parallel(project: Project, origin: Origin) -> bool:
    return project.called(origin.call, origin.scope).startswith("torch.nn.parallel.")


def _asks_for_names(project: Project, call: ast.Call, scope: Scope, model: Model) -> bool:
    """Whether a call reads or writes the state_dict of the model itself, not of what it wraps."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr not in _KEEPS_NAMES:
        return False
    inside = isinstance(func.value, ast.Attribute) and func.value.attr == "module"
    return not inside and _is_model(project, func.value, scope, model)


def _near_model(changes: Changes, model: Model, end: str, line: str) -> str:
    """Put a line behind the making of the model, or before the optimizer's where that is elsewhere."""
    place = model.first if end == "first" else model.last
    at = place or model.before
    form = changes.spell("torch.channels_last", at.scope) if "{format}" in line else ""
    text = line.format(model=model.text, format=form)
    if not isinstance(at.node, ast.stmt):
        raise UnwritableError(f"{at.words} is no statement", text)
    if place is None:
        changes.before(at.node, at.scope.source, text)
        return f"before {at.words}"
    changes.after(at.node, at.scope.source, text)
    return f"after {at.words}"


def _model(project: Project, *lines: str) -> Model:
    try:
        return the_model(project)
    except UnwritableError as error:
        raise UnwritableError(error.reason, *lines) from error


def _step(project: Project, *lines: str) -> Step:
    try:
        return forward_step(project)
    except UnwritableError as error:
        raise UnwritableError(error.reason, *lines) from error


def _wrap(changes: Changes, step: Step, header: str) -> None:
    if step.inline is None:
        changes.wrap(step.statements, step.scope, header)
    else:
        free = (name for name in ("loss", "train_loss", "loss_value", "step_loss") if step.scope.lookup(name) is None)
        name = next(free, "")
        if not name:
            raise UnwritableError("every name for the loss is taken", header)
        changes.wrap_split(step.statements, step.scope, header, name)


def _lines(step: Step) -> str:
    source = step.scope.source
    first, last = source.line_of(step.statements[0]), source.line_of(step.statements[-1])
    return first if first == last else f"{first} to {last}"


def _device_type(project: Project, step: Step) -> str:
    """An expression for the type of the device: a variable of the script, a constant, or that of a parameter."""
    found = step.scope.lookup("device")
    if found is not None:
        made = origins(project, ast.Name("device"), step.scope)
        if made and all(project.called(item.call, item.scope) == "torch.device" for item in made):
            return "device.type"
        texts = [text for bind in found[1] if bind.kind == "value" for text in _texts(bind.value)]
        if texts and None not in texts and len(found[1]) == 1:
            return "device"
    if not any(_names_accelerator(node) for source in project.sources.values() for node in ast.walk(source.tree)):
        return '"cpu"'
    if not step.calls:
        raise UnwritableError("no name of the device and none of the model is seen where the loss is computed")
    return f"next({ast.unparse(step.calls[0].func)}.parameters()).device.type"


def _texts(value: ast.expr | None) -> list[str | None]:
    """The strings that an expression may be, each the plain type of a device; None for anything else."""
    if isinstance(value, ast.IfExp):
        return _texts(value.body) + _texts(value.orelse)
    plain = isinstance(value, ast.Constant) and isinstance(value.value, str) and ":" not in value.value
    return [str(value.value)] if plain and isinstance(value, ast.Constant) else [None]


def _names_accelerator(node: ast.AST) -> bool:
    """Whether a node has to do with devices: then the CPU is not the only one that the script may run on."""
    if isinstance(node, ast.Name | ast.Attribute):
        words = node.id if isinstance(node, ast.Name) else node.attr
        return words in (*ACCELERATORS, "device", "accelerator")
    if isinstance(node, ast.arg | ast.keyword):
        return node.arg == "device"
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, str) and value.partition(":")[0] in ACCELERATORS
