"""Two networks that forecast gridded fields: a space-time transformer and a U-Net.

Both map the last hours to the next ones and share `Forecaster`, which works in physical units outside and in normalized
values inside: each channel is normalized by its mean and standard deviation, and the network predicts the change from the
last field, in units of the typical change. An untrained network therefore forecasts persistence.

Norms, softmax (inside the attention kernel), and the residual stream stay float32 under autocast; matrix products use the
lower precision. The longitude is periodic in the U-Net's convolutions, and in the transformer's positions.

Source: Bertasius et al. 2021 (divided space-time attention); Ronneberger et al. 2015 (U-Net); Xiong et al. 2020 (pre-norm);
Pathak et al. 2022, Bi et al. 2023 (forecasting the change of gridded fields).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.checkpoint import checkpoint

from hasten.core.errors import JobError

Attention: TypeAlias = Literal["factorised", "joint"]


class Norm(nn.LayerNorm):
    """LayerNorm over the last dimension, computed in float32 whatever autocast says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize `[..., width]`."""
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


class ChannelNorm(nn.GroupNorm):
    """GroupNorm, computed in float32 whatever autocast says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize `[batch, channels, height, width]`."""
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


class SelfAttention(nn.Module):
    """Multi-head attention over the second-last dimension, by PyTorch's fused kernel.

    Args:
        width: Width of a token.
        heads: Number of heads; divides `width`.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[batch, tokens, width]` to the same shape."""
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """A pre-norm transformer block: attention in space and time, then an MLP.

    Args:
        width: Width of a token.
        heads: Number of heads.
        attention: `factorised` attends within a time step, then over the time steps of a place: less work for long windows.
            `joint` attends over all tokens of all time steps.
    """

    def __init__(self, width: int, heads: int, attention: Attention) -> None:
        super().__init__()
        self.norm, self.attention = Norm(width), SelfAttention(width, heads)
        self.in_time = attention == "factorised"
        if self.in_time:
            self.time_norm, self.time_attention = Norm(width), SelfAttention(width, heads)
        self.mlp = nn.Sequential(Norm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[batch, time, places, width]` to the same shape."""
        batch, time, places, _ = x.shape
        if self.in_time:
            x = x + self.attention(self.norm(x).flatten(0, 1)).unflatten(0, (batch, time))
            across = self.time_norm(x).transpose(1, 2).flatten(0, 1)
            x = x + self.time_attention(across).unflatten(0, (batch, places)).transpose(1, 2)
        else:
            x = x + self.attention(self.norm(x).flatten(1, 2)).unflatten(1, (time, places))
        out: torch.Tensor = x + self.mlp(x)
        return out


class SpaceTimeTransformer(nn.Module):
    """A transformer over patches of several time steps.

    Args:
        num_in: Time steps it receives.
        num_out: Time steps it returns.
        channels: Fields per time step.
        grid: Latitudes and longitudes; multiples of `patch`.
        patch: Side of a patch in grid cells.
        width: Width of a token.
        depth: Number of blocks.
        heads: Number of heads.
        attention: See `Block`.
        checkpoint_frac: Fraction of the blocks, from 0 to 1, whose activations are recomputed in the backward pass and not
            stored.

    Raises:
        JobError: A size does not fit.
    """

    def __init__(
        self,
        *,
        num_in: int,
        num_out: int,
        channels: int,
        grid: tuple[int, int],
        patch: int = 4,
        width: int = 96,
        depth: int = 4,
        heads: int = 4,
        attention: Attention = "factorised",
        checkpoint_frac: float = 0.0,
    ) -> None:
        super().__init__()
        if grid[0] % patch or grid[1] % patch:
            raise JobError(f"the grid must be a multiple of the patch ({patch} cells), not {grid[0]} x {grid[1]}.")
        if width % heads:
            raise JobError(f"the width must be a multiple of the number of heads ({heads}), not {width}.")
        if attention not in {"factorised", "joint"}:
            raise JobError(f"attention must be 'factorised' or 'joint', not {attention!r}.")
        if not 0 <= checkpoint_frac <= 1:
            raise JobError(f"checkpoint_frac must be from 0 to 1, not {checkpoint_frac!r}.")
        self.num_out, self.channels, self.patch = num_out, channels, patch
        self.places = grid[0] // patch, grid[1] // patch
        self.embed = nn.Linear(channels * patch * patch, width)
        self.place = nn.Parameter(positions(*self.places, width))
        self.time = nn.Parameter(torch.randn(num_in, 1, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads, attention) for _ in range(depth))
        self.num_checkpointed = round(checkpoint_frac * depth)
        self.norm = Norm(width)
        self.head = nn.Linear(width, num_out * channels * patch * patch)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map normalized `[batch, num_in, channels, latitude, longitude]` to `[batch, num_out, channels, ...]`."""
        (rows, columns), p = self.places, self.patch
        patches = x.unflatten(-1, (columns, p)).unflatten(-3, (rows, p)).permute(0, 1, 3, 5, 2, 4, 6)
        tokens = self.embed(patches.flatten(4).flatten(2, 3)) + self.place + self.time
        for number, block in enumerate(self.blocks):
            recompute = self.training and number < self.num_checkpointed
            tokens = checkpoint(block, tokens, use_reentrant=False) if recompute else block(tokens)
        out = self.head(self.norm(tokens[:, -1])).unflatten(1, (rows, columns))
        out = out.unflatten(-1, (self.num_out, self.channels, p, p)).permute(0, 3, 4, 1, 5, 2, 6)
        fields: torch.Tensor = out.flatten(5, 6).flatten(3, 4)
        return fields


def positions(rows: int, columns: int, width: int) -> torch.Tensor:
    """Return initial position embeddings `[rows * columns, width]`: waves in latitude, and periodic waves in longitude."""
    quarter = -(-width // 4)
    latitude = torch.linspace(0, math.pi, rows)[:, None] * torch.arange(1, quarter + 1)
    longitude = torch.arange(columns)[:, None] * (2 * math.pi / columns) * torch.arange(1, quarter + 1)
    parts = [latitude.sin()[:, None], latitude.cos()[:, None], longitude.sin()[None], longitude.cos()[None]]
    whole = torch.cat([part.expand(rows, columns, quarter) for part in parts], dim=-1)
    return 0.1 * whole[..., :width].reshape(rows * columns, width)


class RoundConv(nn.Conv2d):
    """A 3 x 3 convolution on the globe: the longitude wraps around, and the rows at the poles repeat."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[batch, inputs, height, width]` to `[batch, outputs, height, width]`."""
        around = F.pad(x, (1, 1, 0, 0), mode="circular")
        return super().forward(F.pad(around, (0, 0, 1, 1), mode="replicate"))


class ConvBlock(nn.Sequential):
    """Two convolutions, each with a norm and GELU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for before in (inputs, outputs):
            layers += [RoundConv(before, outputs), ChannelNorm(math.gcd(8, outputs), outputs), nn.GELU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """A U-Net over the fields of all time steps as channels.

    Args:
        num_in: Time steps it receives.
        num_out: Time steps it returns.
        channels: Fields per time step.
        grid: Latitudes and longitudes; multiples of 2 ** (`depth` - 1).
        width: Channels of the finest level; each coarser one doubles them.
        depth: Number of levels.
        checkpoint_frac: Fraction of the blocks, the finest first, whose activations are recomputed.

    Raises:
        JobError: A size does not fit.
    """

    def __init__(
        self,
        *,
        num_in: int,
        num_out: int,
        channels: int,
        grid: tuple[int, int],
        width: int = 32,
        depth: int = 3,
        checkpoint_frac: float = 0.0,
    ) -> None:
        super().__init__()
        factor = 2 ** (depth - 1)
        if grid[0] % factor or grid[1] % factor:
            raise JobError(f"the grid must be a multiple of {factor} cells (depth {depth}), not {grid[0]} x {grid[1]}.")
        if not 0 <= checkpoint_frac <= 1:
            raise JobError(f"checkpoint_frac must be from 0 to 1, not {checkpoint_frac!r}.")
        self.num_out, self.channels = num_out, channels
        widths = [width * 2**level for level in range(depth)]
        self.down = nn.ModuleList(
            ConvBlock(before, after) for before, after in zip([num_in * channels, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(ConvBlock(2 * w + w, w) for w in widths[:-1])
        self.num_checkpointed = round(checkpoint_frac * depth)
        self.head = nn.Conv2d(width, num_out * channels, 1)
        nn.init.zeros_(self.head.weight)
        if self.head.bias is not None:
            nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map normalized `[batch, num_in, channels, latitude, longitude]` to `[batch, num_out, channels, ...]`."""
        x, levels = x.flatten(1, 2), []
        for level, block in enumerate(self.down):
            x = self._run(level, block, F.avg_pool2d(x, 2) if level else x)
            levels.append(x)
        for level in range(len(self.up) - 1, -1, -1):
            finer = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = self._run(level, self.up[level], torch.cat([finer, levels[level]], dim=1))
        fields: torch.Tensor = self.head(x).unflatten(1, (self.num_out, self.channels))
        return fields

    def _run(self, level: int, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if self.training and level < self.num_checkpointed:
            out: torch.Tensor = checkpoint(block, x, use_reentrant=False)
            return out
        result: torch.Tensor = block(x)
        return result


class Forecaster(nn.Module):
    """A network with its normalization: physical units in, physical units out, always float32.

    Args:
        network: Maps normalized `[batch, time, channels, latitude, longitude]` to the normalized change of each lead.
        mean: Mean of each channel.
        std: Standard deviation of each channel.
        change: Standard deviation of the change of each channel over one step.
    """

    mean: torch.Tensor
    std: torch.Tensor
    change: torch.Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float], change: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        for name, values in (("mean", mean), ("std", std), ("change", change)):
            self.register_buffer(name, torch.tensor(list(values), dtype=torch.float32)[:, None, None])

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        """Forecast fields in physical units.

        Args:
            fields: float32 `[batch, time, channels, latitude, longitude]`. Missing values count as the mean.

        Returns:
            float32 `[batch, lead, channels, latitude, longitude]`.
        """
        known = torch.where(fields.isfinite(), fields, self.mean)
        change: torch.Tensor = self.network((known - self.mean) / self.std)
        return known[:, -1:] + change.float() * self.change
