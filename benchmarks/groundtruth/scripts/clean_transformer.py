"""A small character model of the usual kind: library attention, 16 bits, no padding, an occasional report."""

import argparse
import time
from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    context: int = 128
    dim: int = 192
    heads: int = 6
    layers: int = 3
    batch: int = 16


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.norm1, self.norm2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.qkv, self.proj = nn.Linear(cfg.dim, 3 * cfg.dim), nn.Linear(cfg.dim, cfg.dim)
        self.mlp = nn.Sequential(nn.Linear(cfg.dim, 4 * cfg.dim), nn.GELU(), nn.Linear(4 * cfg.dim, cfg.dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.cfg.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).split(d, dim=2))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, cfg, vocab):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, cfg.dim), nn.Embedding(cfg.context, cfg.dim)
        self.blocks = nn.Sequential(*[Block(cfg) for _ in range(cfg.layers)])
        self.norm, self.head = nn.LayerNorm(cfg.dim), nn.Linear(cfg.dim, vocab)

    def forward(self, ids):
        x = self.blocks(self.tok(ids) + self.pos.weight[: ids.size(1)])
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--fixed", action="store_true", help="repeat one batch, and print nothing")
    args = parser.parse_args()
    cfg = Config()
    torch.manual_seed(1337)
    text = "\n".join(topics[name] for name in sorted(topics))
    chars = sorted(set(text))
    index = {c: i for i, c in enumerate(chars)}
    data = torch.tensor([index[c] for c in text])

    def get_batch():
        at = torch.randint(len(data) - cfg.context - 1, (cfg.batch, 1)) + torch.arange(cfg.context + 1)
        chunk = data[at]
        return chunk[:, :-1], chunk[:, 1:]

    model = GPT(cfg, len(chars))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    x, y = get_batch()
    start = time.perf_counter()
    for step in range(args.steps):
        if not args.fixed:
            x, y = get_batch()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not args.fixed and step % 20 == 0:
            print(f"step {step}: {loss.item():.3f}")
    print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
