"""A character model with textbook attention: the whole matrix of scores is computed and kept."""

import argparse
import math
import time
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F

CONTEXT = 768


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, library):
        super().__init__()
        self.heads, self.library = heads, library
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.register_buffer("mask", torch.ones(CONTEXT, CONTEXT).tril().bool(), persistent=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        if self.library:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # truth: attention
            scores = scores.masked_fill(~self.mask[:t, :t], float("-inf"))  # truth: attention
            y = torch.softmax(scores, dim=-1) @ v  # truth: attention
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class CharModel(nn.Module):
    def __init__(self, vocab, library, dim=64, heads=8, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.position = nn.Embedding(CONTEXT, dim)
        self.blocks = nn.ModuleList([SelfAttention(dim, heads, library) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids) + self.position(torch.arange(ids.size(1)))
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    text = "\n".join(topics[name] for name in sorted(topics))
    chars = sorted(set(text))
    data = torch.tensor([chars.index(c) for c in text[:200_000]])
    model = CharModel(len(chars), args.fixed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = time.perf_counter()
    for _ in range(args.steps):
        at = torch.randint(0, len(data) - CONTEXT - 1, (4,))
        x = torch.stack([data[i : i + CONTEXT] for i in at])
        y = torch.stack([data[i + 1 : i + CONTEXT + 1] for i in at])
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{args.steps} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
