"""A hand-written recurrent cell: thousands of tiny operators per step."""

import argparse
import time

import torch
from torch import nn


class HandmadeLSTM(nn.Module):
    def __init__(self, n_in, n_hidden):
        super().__init__()
        self.n_hidden = n_hidden
        self.wx = nn.ModuleDict({k: nn.Linear(n_in, n_hidden) for k in "ifgo"})
        self.wh = nn.ModuleDict({k: nn.Linear(n_hidden, n_hidden, bias=False) for k in "ifgo"})

    def forward(self, x):
        h = x.new_zeros(x.size(0), self.n_hidden)
        c = torch.zeros_like(h)
        for t in range(x.size(1)):  # truth: kernels
            xt = x[:, t]  # truth: kernels
            i = torch.sigmoid(self.wx["i"](xt) + self.wh["i"](h))  # truth: kernels
            f = torch.sigmoid(self.wx["f"](xt) + self.wh["f"](h))  # truth: kernels
            g = torch.tanh(self.wx["g"](xt) + self.wh["g"](h))  # truth: kernels
            o = torch.sigmoid(self.wx["o"](xt) + self.wh["o"](h))  # truth: kernels
            c = f * c + i * g  # truth: kernels
            h = o * torch.tanh(c)  # truth: kernels
        return h


class LibraryLSTM(nn.Module):
    def __init__(self, n_in, n_hidden):
        super().__init__()
        self.lstm = nn.LSTM(n_in, n_hidden, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0][:, -1]


class Forecaster(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell
        self.out = nn.Linear(48, 1)

    def forward(self, x):
        return self.out(self.cell(x))


def waves(n, length, generator):
    phase = torch.rand(n, 1, generator=generator) * 6.28
    speed = 0.05 + 0.2 * torch.rand(n, 1, generator=generator)
    series = torch.sin(phase + speed * torch.arange(length + 1))
    return series[:, :-1, None], series[:, -1:]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=350)
    p.add_argument("--fixed", action="store_true")
    args = p.parse_args()
    torch.manual_seed(0)
    model = Forecaster((LibraryLSTM if args.fixed else HandmadeLSTM)(1, 48))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = waves(2048, 64, torch.Generator().manual_seed(0))
    start = time.perf_counter()
    for _ in range(args.steps):
        rows = torch.randint(0, 2048, (32,))
        loss = (model(x[rows]) - y[rows]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    print(f"mse {loss.item():.4f}")
    print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
