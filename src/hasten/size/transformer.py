"""Build the transformer that a `Shape` describes, to run it on fake tensors."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.checkpoint import checkpoint

from hasten.size.shape import Shape


class Attention(nn.Module):
    """Causal self-attention with rotary positions; `flash` uses PyTorch's fused kernel, which stores no scores."""

    def __init__(self, shape: Shape, *, flash: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.flash = shape.heads, shape.groups, flash
        self.dim = shape.hidden // shape.heads
        self.query = nn.Linear(shape.hidden, shape.hidden, bias=not shape.gated)
        self.key_value = nn.Linear(shape.hidden, 2 * self.groups * self.dim, bias=not shape.gated)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=not shape.gated)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """Map `[batch, time, hidden]` to the same shape. `turn`: rotations `[2, time, dim / 2]`."""
        query = rotate(self.query(x).unflatten(-1, (self.heads, self.dim)).transpose(1, 2), turn)
        key, value = self.key_value(x).unflatten(-1, (2, self.groups, self.dim)).permute(2, 0, 3, 1, 4)
        key = rotate(key, turn)
        if self.groups != self.heads:
            key, value = (part.repeat_interleave(self.heads // self.groups, dim=1) for part in (key, value))
        if self.flash:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = query @ key.transpose(-2, -1) / self.dim**0.5
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            mixed = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1) @ value
        out: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


def rotate(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Rotate the halves of `[..., time, dim]` by the angles of their positions (Su et al. 2021)."""
    (cosine, sine), (left, right) = turn.to(x.dtype), x.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


class FeedForward(nn.Module):
    """GELU network, or SwiGLU in the gated form."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gated = shape.gated
        self.up = nn.Linear(shape.hidden, shape.inner * (2 if shape.gated else 1), bias=not shape.gated)
        self.down = nn.Linear(shape.inner, shape.hidden, bias=not shape.gated)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[..., hidden]` to the same shape."""
        inner = self.up(x)
        if self.gated:
            gate, value = inner.chunk(2, dim=-1)
            out: torch.Tensor = self.down(F.silu(gate) * value)
        else:
            out = self.down(F.gelu(inner))
        return out


class Experts(nn.Module):
    """A mixture of experts whose tokens are spread evenly, which is what balanced training aims at."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.active = shape.active
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(shape) for _ in range(shape.experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[batch, time, hidden]` to the same shape. Each expert gets an equal share of the tokens, in order."""
        tokens = x.flatten(0, 1)
        weights = self.router(tokens).softmax(dim=-1).topk(self.active, dim=-1).values
        copies = tokens.repeat(self.active, 1)
        done = torch.cat([net(part) for net, part in zip(self.experts, copies.tensor_split(len(self.experts)), strict=True)])
        mixed = done.unflatten(0, (self.active, -1)) * weights.T.unsqueeze(-1)
        out: torch.Tensor = mixed.sum(dim=0).view_as(x)
        return out


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, shape: Shape, *, flash: bool) -> None:
        super().__init__()
        norm = nn.RMSNorm if shape.gated else nn.LayerNorm
        self.norm, self.attention = norm(shape.hidden), Attention(shape, flash=flash)
        self.ffn_norm = norm(shape.hidden)
        self.ffn = Experts(shape) if shape.experts > 1 else FeedForward(shape)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """Map `[batch, time, hidden]` to the same shape."""
        x = x + self.attention(self.norm(x), turn)
        out: torch.Tensor = x + self.ffn(self.ffn_norm(x))
        return out


class Transformer(nn.Module):
    """A decoder-only transformer with its loss.

    Args:
        shape: Its sizes.
        flash: Use the fused attention kernel.
        recomputed: Store only the input of each block, and compute it again in the backward pass.
    """

    def __init__(self, shape: Shape, *, flash: bool = True, recomputed: bool = False) -> None:
        super().__init__()
        shape.check()
        self.dim, self.recomputed = shape.hidden // shape.heads, recomputed
        self.embed = nn.Embedding(shape.vocab, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape, flash=flash) for _ in range(shape.layers))
        self.norm = (nn.RMSNorm if shape.gated else nn.LayerNorm)(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if shape.tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy of the next token; `tokens`: `[batch, time + 1]`."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.embed(inputs)
        place = torch.arange(inputs.shape[1], device=x.device)[:, None] * torch.ones(self.dim // 2, device=x.device)
        turn = torch.stack((place.cos(), place.sin()))
        for block in self.blocks:
            x = checkpoint(block, x, turn, use_reentrant=False) if self.recomputed else block(x, turn)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
