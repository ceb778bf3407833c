"""What cannot be written in place: why not, and the lines to write by hand where a few of them do it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hasten.core.errors import MachineError, PlanError
from hasten.core.optimization import Optimization, required_environment
from hasten.script.patch.edits import Changes
from hasten.script.patch.source import UnwritableError

GENERAL = "it takes more than a change of lines; `hasten run --plan hasten.toml {script}` trains under it"


def leave(changes: Changes, item: Optimization) -> NoReturn:
    """Raise UnwritableError with the reason and the lines."""
    reason, lines = _LINES.get(item.card.name, (GENERAL, None))
    found = lines(changes, item) if lines is not None else ()
    raise UnwritableError(reason.format(script=changes.project.script.path.name), *found)


def leave_environment(items: Sequence[Optimization], script: Path) -> NoReturn:
    """Raise UnwritableError with the command that sets all variables the plan needs, which no line of the script can."""
    try:
        variables = required_environment(items)
    except (MachineError, PlanError) as error:
        raise UnwritableError(str(error).rstrip(".")) from error
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    raise UnwritableError(
        "it is read before Python starts, so it stands in the command", f"{given} python {shlex.quote(str(script))}"
    )


def _saves(changes: Changes, _: Any) -> tuple[str, ...]:
    calls = changes.project.calls_of("torch.save")
    places = ", ".join(scope.source.line_of(call) for call, scope in calls) or "where the weights are saved"
    return (
        f"# {places}: copy, and let a thread write the copy",
        "copied = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}",
        "if saving is not None:",
        "    saving.join()",
        "saving = threading.Thread(target=torch.save, args=(copied, path))",
        "saving.start()",
    )


def _reports(_: Changes, __: Any) -> tuple[str, ...]:
    return (
        "lines = queue.SimpleQueue()",
        "handler = logging.handlers.QueueHandler(lines)",
        "listener = logging.handlers.QueueListener(lines, *logging.getLogger().handlers)",
        "logging.getLogger().handlers = [handler]",
        "listener.start()  # and listener.stop() at the end",
    )


def _cache(_: Changes, item: Any) -> tuple[str, ...]:
    room = f" and len(self.kept) < {item.max_samples}" if item.max_samples else ""
    return (
        "class Kept(torch.utils.data.Dataset):  # around the dataset, below anything random",
        "    def __init__(self, dataset):",
        "        self.dataset, self.kept = dataset, {}",
        "    def __len__(self):",
        "        return len(self.dataset)",
        "    def __getitem__(self, index):",
        f"        if index not in self.kept{room}:",
        "            self.kept[index] = self.dataset[index]",
        "        return self.kept[index]" if not room else "        return self.kept.get(index) or self.dataset[index]",
    )


def _checkpoint(_: Changes, item: Any) -> tuple[str, ...]:
    if item.save_frac:
        return ()
    chosen = f"each block, or of one in {item.every}" if item.every > 1 else "each block"
    return (
        f"# in the model's forward, for {chosen}",
        "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
    )


def _volumes(_: Changes, __: Any) -> tuple[str, ...]:
    return (
        "for parameter in model.parameters():",
        "    if parameter.dim() == 5:",
        "        parameter.data = parameter.data.contiguous(memory_format=torch.channels_last_3d)",
        "x = x.contiguous(memory_format=torch.channels_last_3d)  # each batch",
    )


def _one_cycle(_: Changes, item: Any) -> tuple[str, ...]:
    arguments = f"max_lr={item.max_lr_factor:g} * lr, total_steps=updates, pct_start={item.pct_start:g}"
    return (
        f"schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, {arguments})",
        "schedule.step()  # after each optimizer.step()",
    )


def _cosine(_: Changes, item: Any) -> tuple[str, ...]:
    return (
        f"warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-3, total_iters=int({item.warmup_frac:g} * updates))",
        f"cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates, eta_min={item.final_frac:g} * lr)",
        f"# with a rate of {item.peak_factor:g} * lr at its highest: first the one, then the other (SequentialLR)",
    )


def _eight_bits(_: Changes, __: Any) -> tuple[str, ...]:
    return ("from torchao.optim import AdamW8bit", "optimizer = AdamW8bit(model.parameters(), ...)  # or Adam8bit")


def _buckets(_: Changes, item: Any) -> tuple[str, ...]:
    graph = ", static_graph=True" if item.static_graph else ""
    return (f"DistributedDataParallel(model, bucket_cap_mb={item.bucket_mb:g}{graph})",)


def _hook(_: Changes, item: Any) -> tuple[str, ...]:
    name = "bf16_compress_hook" if item.dtype == "bfloat16" else "fp16_compress_hook"
    return (
        "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks",
        f"model.register_comm_hook(None, default_hooks.{name})  # of a DistributedDataParallel",
    )


def _micro(_: Changes, item: Any) -> tuple[str, ...]:
    return (
        f"for x_part, y_part in zip(x.chunk({item.parts}), y.chunk({item.parts})):",
        "    loss = loss_fn(model(x_part), y_part) * len(x_part) / len(x)",
        "    loss.backward()",
    )


def _every(_: Changes, item: Any) -> tuple[str, ...]:
    return (f"if step % {item.every} == 0:", "    print(loss.item())  # whatever reads the loss")


def _validation(_: Changes, item: Any) -> tuple[str, ...]:
    return (f"DataLoader(valid_data, batch_size={item.times} * batch_size)",)


def _trimmed(_: Changes, __: Any) -> tuple[str, ...]:
    return ("ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # in collate_fn: to the longest of the batch",)


def _valid_compiled(_: Changes, __: Any) -> tuple[str, ...]:
    return ("compiled = torch.compile(model)  # call this one where the model is evaluated",)


def _read_many(_: Changes, __: Any) -> tuple[str, ...]:
    return ("def __getitems__(self, indices):  # of the dataset: all samples of a batch in one reading",)


Lines = Callable[[Changes, Any], tuple[str, ...]]

_BY_HAND = "it depends on parts of the script that are not read here"
_LINES: Mapping[str, tuple[str, Lines | None]] = {
    "activation_checkpointing": ("it goes into the model's own forward", _checkpoint),
    "async_logging": ("how the script reports is its own", _reports),
    "background_checkpoint": ("a thread has to be waited for before the next checkpoint and at the end", _saves),
    "batched_reading": ("it goes into the dataset", _read_many),
    "channels_last_3d": (_BY_HAND, _volumes),
    "eight_bit_states": ("the optimizer becomes one of another library", _eight_bits),
    "gradient_buckets": (_BY_HAND, _buckets),
    "gradient_compression": (_BY_HAND, _hook),
    "metric_reading": ("where the script reads the loss is its own", _every),
    "microbatch": ("how a batch is cut depends on what it holds", _micro),
    "one_cycle": ("it needs the number of updates and the script's own rate", _one_cycle),
    "sample_cache": ("which part of a sample is the same at every visit is for you to say", _cache),
    "trim_padding": ("how samples are padded is its collate function's own", _trimmed),
    "validation_batch": ("which loader evaluates is not read here", _validation),
    "validation_compile": ("where the script evaluates is not read here", _valid_compiled),
    "warmup_cosine": ("it needs the number of updates and the script's own rate", _cosine),
}
