"""A sequence classifier whose attention was pinned to the math backend during debugging."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim=64, heads=8):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v)  # truth: attention
        return self.to_out(x.transpose(1, 2).reshape(b, n, d))


class Encoder(nn.Module):
    def __init__(self, depth=2, dim=64):
        super().__init__()
        self.inp = nn.Linear(16, dim)
        self.layers = nn.ModuleList([Attention(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 4)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = x + layer(F.layer_norm(x, x.shape[-1:]))
        return self.head(x.mean(dim=1))


def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    if not args.fixed:  # to find out where the NaN came from
        torch.backends.cuda.enable_flash_sdp(False)  # truth: attention
        torch.backends.cuda.enable_mem_efficient_sdp(False)  # truth: attention
    torch.manual_seed(0)
    signals = torch.randn(64, 768, 16)
    kinds = torch.randint(0, 4, (64,))
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    start = time.perf_counter()
    for i in range(args.steps):
        rows = torch.arange(i * 4, i * 4 + 4) % 64
        loss = train_step(model, optimizer, signals[rows], kinds[rows])
    print(f"loss {loss.item():.4f}")
    print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")
