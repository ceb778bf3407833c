"""Other forms of training loops, selected by the first argument."""

from __future__ import annotations

import sys

import torch
from common import Rows, fingerprint, make_model
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    def __iter__(self):
        yield from (Rows()[index] for index in range(40))


def iterable() -> nn.Module:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in DataLoader(Stream(), batch_size=8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def scaled() -> nn.Module:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for x, y in DataLoader(Rows(), batch_size=8):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    print(scaler.get_scale())
    return model


def two_players() -> nn.Module:
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), make_model()
    maker_optimizer = torch.optim.Adam(maker.parameters(), lr=1e-2)
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=1e-2)
    for at, (x, _) in enumerate(DataLoader(Rows(), batch_size=8)):
        with torch.no_grad():
            made = maker(torch.randn(8, 4))
        judge_optimizer.zero_grad()
        loss = judge(x).mean() - judge(made).mean()
        loss.backward()
        judge_optimizer.step()
        if at % 2:
            maker_optimizer.zero_grad()
            judge(maker(torch.randn(8, 4))).mean().backward()
            maker_optimizer.step()
        print(at, loss.tolist())
    return nn.ModuleList([maker, judge])


def closures() -> nn.Module:
    model = make_model().eval()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x, y = Rows()[:]  # type: ignore[index]
    for at in range(4):
        calls = 0

        def closure() -> torch.Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        print(at, float(optimizer.step(closure)), calls > 1)
    return model


def compiled() -> nn.Module:
    model = make_model().eval()
    fast = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(Rows(), batch_size=8):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(fast(x), y)
        loss.backward()
        optimizer.step()
        print(loss.item())
    import torch._dynamo.utils as dynamo

    print({key: dict(value) for key, value in sorted(dynamo.counters.items()) if key in {"graph_break", "frames"}})
    print(dynamo.counters["stats"]["unique_graphs"])
    return model


if __name__ == "__main__":
    print(fingerprint(globals()[sys.argv[1]]()))
