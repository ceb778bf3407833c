"""Generate whole training scripts from forms of loops and ways to change samples, and run them in one process.

Each script trains a tiny model for four epochs, makes a change before the third, prints its losses, and writes a log and
checkpoints. At the end it reports a hash of its weights and the next random numbers.

    python whole_scripts.py JOBS.json

runs jobs one after another, each in a fork of a process that has loaded torch. Jobs without Hasten run before Hasten is
imported. A job is a `Job` as a dictionary.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import sys
import threading
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

HEAD = """
import hashlib, itertools, os, random, sys, threading
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

WORKERS, KEPT = int(sys.argv[1]), sys.argv[2] == "kept"
EPOCHS, CHANGED_AT = 4, 2
LEVEL = 1.0
torch.manual_seed(0); np.random.seed(0); random.seed(0)

class Scale:
    def __init__(self): self.by = 1.0
    def __call__(self, x): return x * self.by

def make_level():
    by = 1.0
    def change_to(value):
        nonlocal by
        by = value
    return change_to, lambda x: x * by

class Rows(Dataset):
    def __init__(self, seed=0):
        made = np.random.default_rng(seed)
        self.x = made.standard_normal((48, 6)).astype(np.float32)
        self.y = made.integers(2, size=48)
        self.transforms = [torch.clone, Scale()]
        self.bias, self.callbacks = 0.0, []
        self.change_level, self.level = make_level()
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        x = torch.from_numpy(self.x[i])
        for transform in self.transforms: x = transform(x)
        with open("level.txt") as file: x = self.level(x) * LEVEL * float(file.read()) + self.bias
        x = x * float(os.environ.get("LEVEL", "1"))
        for callback in self.callbacks: x = callback(x)
        return x, int(self.y[i])

def make_loader(data, **more):
    more = {"batch_size": 8, "shuffle": True, **more}
    return DataLoader(data, num_workers=WORKERS, persistent_workers=KEPT, **more)

def make_net():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))

def log(*words):
    print(*words)
    with open("run/log.txt", "a") as file: print(*words, file=file)

def step(x, y):
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad(set_to_none=False); loss.backward(); optimizer.step()
    log(repr(loss.item()))
    return loss.item()

def save(name):
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, f"run/new-{name}.pt")
    os.replace(f"run/new-{name}.pt", f"run/{name}.pt")

os.makedirs("run", exist_ok=True)
with open("level.txt", "w") as file: file.write("1.0")
data = Rows()
loader = make_loader(data)
net = make_net()
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

def change():
    global LEVEL
    {change}
"""
TAIL = """
np.savez("run/weights.npz", *[p.detach().numpy() for p in net.parameters()])
log("drawn", torch.rand(1).item(), np.random.rand(), random.random())
log("weights", hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())
"""
SHAPES = {
    "for": """
for epoch in range(EPOCHS):
    if epoch == CHANGED_AT: change()
    for x, y in loader: step(x, y)
    save("last")
""",
    "while and next": """
epoch, batches = 0, iter(loader)
while epoch < EPOCHS:
    try:
        x, y = next(batches)
    except StopIteration:
        epoch += 1
        if WORKERS and epoch == CHANGED_AT: change()  # once they have begun, it is chance what they read of a file
        batches = iter(loader)
        if not WORKERS and epoch == CHANGED_AT: change()
        save(f"epoch-{epoch}")
        continue
    step(x, y)
""",
    "generator": """
def batches():
    for epoch in range(EPOCHS):
        if epoch == CHANGED_AT: change()
        yield from loader
for number, (x, y) in enumerate(batches()):
    step(x, y)
    if number % 7 == 0: save(str(number))
""",
    "accumulation": """
for epoch in range(EPOCHS):
    if epoch == CHANGED_AT: change()
    for number, (x, y) in enumerate(loader):
        loss = F.cross_entropy(net(x), y) / 2
        loss.backward()
        log(repr(loss.item()))
        if number % 2:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step(); optimizer.zero_grad()
    save("last")
""",
    "several optimizers": """
body, head = torch.optim.Adam(net[0].parameters(), 0.01), torch.optim.SGD(net[3].parameters(), 0.1)
schedule = torch.optim.lr_scheduler.StepLR(body, 2, 0.5)
for epoch in range(EPOCHS):
    if epoch == CHANGED_AT: change()
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        body.zero_grad(); head.zero_grad()
        loss.backward()
        body.step(); head.step()
        log(repr(loss.item()))
    schedule.step()
    torch.save([net.state_dict(), body.state_dict(), head.state_dict()], "run/last.pt")
""",
    "closure of LBFGS": """
optimizer = torch.optim.LBFGS(net.parameters(), 0.1, max_iter=3)
net[2].p = 0.0
for epoch in range(EPOCHS):
    if epoch == CHANGED_AT: change()
    for x, y in loader:
        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss
        log(repr(optimizer.step(closure).item()))
    save("last")
""",
    "validation between": """
held_out, best = make_loader(Rows(1), shuffle=False, batch_size=16), 1e9
for epoch in range(EPOCHS):
    if epoch == CHANGED_AT: change()
    for x, y in loader: step(x, y)
    net.eval()
    with torch.no_grad():
        seen = sum(F.cross_entropy(net(x), y).item() for x, y in held_out)
        again = sum(F.cross_entropy(net(x), y).item() for x, y in loader)
    net.train()
    log("held out", seen, "trained on", again)
    if seen < best:
        best = seen
        save("best")
""",
    "function that stops early": """
def train(loader, limit):
    for epoch in range(EPOCHS):
        if epoch == CHANGED_AT: change()
        for number, (x, y) in enumerate(loader):
            step(x, y)
            if number == limit - epoch: break
        save("last")
        if epoch == EPOCHS - 1: return log("stopped in epoch", epoch)
train(loader, 5)
""",
    "thread": """
def train():
    for epoch in range(EPOCHS):
        if epoch == CHANGED_AT: change()
        for x, y in loader: step(x, y)
        save("last")
thread = threading.Thread(target=train)
thread.start(); thread.join()
""",
    "zipped loaders": """
unlabelled = make_loader(Rows(2), batch_size=4, drop_last=True)
for epoch in range(EPOCHS):
    if epoch == CHANGED_AT: change()
    for (x, y), (more, _) in zip(loader, itertools.cycle(unlabelled)):
        with torch.no_grad(): guessed = net(more).argmax(1)
        step(torch.cat([x, more]), torch.cat([y, guessed]))
    save("last")
""",
    "class with callbacks": """
class Trainer:
    def __init__(self): self.on_epoch, self.on_end = [], []
    def fit(self):
        for self.epoch in range(EPOCHS):
            for call in self.on_epoch: call(self)
            for batch in loader: self.training_step(*batch)
        for call in self.on_end: call(self)
    def training_step(self, x, y): step(x, y)
trainer = Trainer()
trainer.on_epoch.append(lambda trainer: trainer.epoch == CHANGED_AT and change())
trainer.on_epoch.append(lambda trainer: save(f"epoch-{trainer.epoch}"))
trainer.on_end.append(lambda trainer: save("last"))
trainer.fit()
""",
    "resumes from its own file": """
def run(until):
    global net, optimizer
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    begin = 0
    if os.path.exists("run/last.pt"):
        kept = torch.load("run/last.pt")
        net.load_state_dict(kept["net"]); optimizer.load_state_dict(kept["optimizer"])
        begin = kept["epoch"]
        log("resumed at", begin)
    for epoch in range(begin, until):
        if epoch == CHANGED_AT: change()
        for x, y in loader: step(x, y)
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, "run/last.pt")
run(1); run(3); run(EPOCHS)
""",
    "loader made each epoch": """
for epoch in range(EPOCHS):
    if epoch == CHANGED_AT: change()
    for x, y in make_loader(data): step(x, y)
    save("last")
""",
    "sampler of its own": """
class Shuffled(Sampler):
    epoch = 0
    def __len__(self): return len(data)
    def __iter__(self): return iter(np.random.default_rng(self.epoch).permutation(len(data)).tolist())
sampler = Shuffled()
loader = make_loader(data, shuffle=False, sampler=sampler)
for sampler.epoch in range(EPOCHS):
    if sampler.epoch == CHANGED_AT: change()
    for x, y in loader: step(x, y)
    save("last")
""",
    "statistics first": """
mean = torch.stack([x.mean(0) for x, _ in make_loader(Rows(3), shuffle=False)]).mean(0)
x, y = next(iter(loader))
log("a batch to look at", x.mean().item())
for epoch in range(EPOCHS):
    if epoch == CHANGED_AT: change()
    for x, y in loader: step(x - mean, y)
    save("last")
""",
    "stream": """
class Stream(IterableDataset):
    def __iter__(self): return (data[i] for i in range(len(data)))
loader = make_loader(Stream(), shuffle=False)
for epoch in range(EPOCHS):
    if epoch == CHANGED_AT: change()
    for x, y in loader: step(x, y)
    save("last")
""",
    "table": """
x, y = torch.from_numpy(data.x).clone(), torch.from_numpy(data.y).clone()
loader = make_loader(TensorDataset(x, y))
for epoch in range(EPOCHS):
    if epoch == CHANGED_AT:
        x *= 0.5
        y[:6] = 1 - y[:6]
    for a, b in loader: step(a, b)
    save("last")
""",
}
"""Name -> the loop of a script."""
ROUTES = {
    "attribute": "data.bias = 0.5",
    "nested attribute": "data.transforms[1].by = 0.5",
    "closure": "data.change_level(0.5)",
    "global": "LEVEL = 0.5",
    "in place": "data.y[:6] = 1 - data.y[:6]; data.x *= 0.5",
    "file": "with open('level.txt', 'w') as file: file.write('0.5')",
    "environment": "os.environ['LEVEL'] = '0.5'",
    "callback": "data.callbacks.append(torch.neg)",
}
"""Name -> code that changes the samples."""
Mode = Literal["alone", "watched", "measured", "plan"]
SESSION = {
    "watched": "hasten.script.watch.session",
    "measured": "hasten.script.watch.session",
    "plan": "hasten.script.plan.session",
}
"""The module that is installed in the script's process, by mode."""


def script(shape: str, route: str) -> str:
    """Return the text of a script."""
    return HEAD.replace("{change}", ROUTES[route]) + SHAPES[shape] + TAIL


@dataclass(frozen=True)
class Job:
    """One run of `train.py` in a folder.

    Attributes:
        folder: The user's project.
        told: A folder next to it for Hasten's reports.
        mode: `alone` runs without Hasten, `watched` until the end, `measured` like a profile, `plan` under a plan.
        arguments: Arguments of the script.
        config: Configuration of Hasten.
        first: Python code to run before the script.
    """

    folder: str
    told: str
    mode: Mode
    arguments: list[str]
    config: dict[str, Any] = field(default_factory=dict)
    first: str = ""

    def write(self, shape: str, route: str) -> None:
        """Create the folders."""
        for folder in (self.folder, self.told):
            Path(folder).mkdir(parents=True)
        Path(self.folder, "train.py").write_text(script(shape, route), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """Return the job as JSON data."""
        return asdict(self)


def run(job: Job, scratch: str = "") -> None:
    """Run the script until this process ends. `scratch` is the folder of a separate file system view, if any."""
    if scratch:
        importlib.import_module("hasten.script.entry.mounts").cover(
            scratch, **json.loads(Path(scratch, "plan.json").read_text(encoding="utf-8"))
        )
    os.chdir(job.folder)
    for number, name in ((1, "out.txt"), (2, "err.txt")):
        os.dup2(os.open(Path(job.told, name), os.O_WRONLY | os.O_CREAT), number)
    config = {**job.config, "folder": job.told, "rank": 0, "ranked": False}
    if job.mode != "alone":
        importlib.import_module(SESSION[job.mode]).install(config)
    exec(job.first, {})  # noqa: S102 - a fault injected by a test
    sys.path[0], sys.argv = job.folder, ["train.py", *job.arguments]
    try:
        runpy.run_path("train.py", run_name="__main__")
    except BaseException:  # noqa: BLE001 - reported as Python does
        traceback.print_exc()
        os._exit(1)
    threading._shutdown()  # type: ignore[attr-defined]  # Python would also tear down torch, which takes a second
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def main(path: str) -> None:
    """Run jobs, those without Hasten first."""
    importlib.import_module("torch._dynamo")  # loaded once for all jobs
    jobs = [Job(**found) for found in json.loads(Path(path).read_text(encoding="utf-8"))]
    for job in sorted(jobs, key=lambda job: job.mode != "alone"):
        apart: Any = None
        if job.mode != "alone":
            for module in SESSION.values():
                importlib.import_module(module)
            importlib.import_module("hasten.optimizations").catalogue()
        if job.mode == "measured":
            os.chdir(job.folder)
            apart = importlib.import_module("hasten.script.entry.apart").Apart(("train.py",), [Path(job.told)], os.environ)
        gc.freeze()  # each script's collector can skip torch's objects
        child = os.fork()
        if child == 0:
            run(job, apart.prefix[-1] if apart and apart.private else "")
        Path(job.told, "code.txt").write_text(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])), encoding="utf-8")
        if apart is not None:
            Path(job.told, "left.txt").write_text(apart.words + apart.end(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
