"""Describe a transformer by its sizes, count its parameters, and check that the sizes fit together.

The described transformer is decoder-only and pre-norm, with rotary positions (no parameters). The plain form is that of
GPT-2 and GPT-3: LayerNorm, biases, GELU. The gated form is that of Llama and Mixtral: RMSNorm, no biases, SwiGLU.
`hasten.size.transformer` builds it; a test holds its parameters equal to `Shape.parameters`.

Source: Radford et al. 2019; Xiong et al. 2020 (pre-norm); Shazeer 2020 (SwiGLU); Ainslie et al. 2023 (grouped queries);
Jiang et al. 2024 (mixture of experts).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from hasten.core.errors import JobError

HEAD_DIMS = (64, 128)
"""Head dimensions with the fastest attention kernels."""
MULTIPLE = 64
"""Matrix products are fastest if each dimension is a multiple of it (NVIDIA, "Matrix Multiplication Background")."""
LARGEST = 10**6


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a transformer.

    Attributes:
        layers: Number of blocks.
        hidden: Width of a token.
        heads: Query heads per layer.
        kv_heads: Key and value heads per layer; None is `heads`. Fewer is grouped-query attention.
        ffn: Width inside the feed-forward network; None is 4 x hidden, or 8/3 x hidden rounded up to 256 in the gated form.
        vocab: Number of tokens of the vocabulary.
        gated: Use the gated form (SwiGLU, RMSNorm, no biases).
        experts: Feed-forward networks per layer; 1 is no mixture of experts.
        active: Experts that each token passes through.
        tied: Use the token embedding as the output layer.

    Raises:
        JobError: A size is not a whole number from 1 to a million.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int | None = None
    ffn: int | None = None
    vocab: int = 32000
    gated: bool = False
    experts: int = 1
    active: int = 1
    tied: bool = False

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in ("gated", "tied") or (value is None and item.name in ("kv_heads", "ffn")):
                continue
            if not isinstance(value, int) or not 1 <= value <= LARGEST:
                raise JobError(f"--{item.name.replace('_', '-')} must be a whole number from 1 to a million, not {value!r}.")

    @property
    def inner(self) -> int:
        """Width inside the feed-forward network."""
        return self.ffn or (-(-8 * self.hidden // 3 // 256) * 256 if self.gated else 4 * self.hidden)

    @property
    def groups(self) -> int:
        """Key and value heads."""
        return self.kv_heads or self.heads

    @property
    def feed_forward(self) -> int:
        """Parameters of one feed-forward network (one expert)."""
        return 3 * self.hidden * self.inner if self.gated else 2 * self.hidden * self.inner + self.inner + self.hidden

    @property
    def block(self) -> int:
        """Parameters of one block, with all experts."""
        h, kv = self.hidden, self.hidden * self.groups // self.heads
        attention = 2 * h * h + 2 * h * kv + (0 if self.gated else 2 * h + 2 * kv)
        router = h * self.experts if self.experts > 1 else 0
        return attention + self.experts * self.feed_forward + router + 2 * self.norm

    @property
    def norm(self) -> int:
        """Parameters of one norm."""
        return self.hidden if self.gated else 2 * self.hidden

    @property
    def ends(self) -> int:
        """Parameters outside the blocks: embedding, last norm and output layer."""
        return self.vocab * self.hidden * (1 if self.tied else 2) + self.norm

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.layers * self.block + self.ends

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes through."""
        idle = max(self.experts - self.active, 0)
        return self.parameters - self.layers * idle * self.feed_forward

    def flops_per_token(self, length: int, *, recomputed: bool = False) -> float:
        """Return the floating-point operations of forward and backward for one token.

        Two per multiply-add, three passes over each weight matrix (four if blocks are recomputed), and causal attention
        over `length` / 2 positions on average. Norms, activations and the softmax are not counted, as is usual.

        Source: Kaplan et al. 2020; Narayanan et al. 2021, with causal attention halved.

        Args:
            length: Tokens of a sequence.
            recomputed: Whether the blocks are computed again in the backward pass (full activation checkpointing).
        """
        matrices = self.layers * (self.block - 2 * self.norm) - (
            self.layers * (self.experts - self.active) * self.feed_forward
        )
        blocks = 2.0 * matrices + 2.0 * self.layers * self.hidden * length
        return blocks * (4 if recomputed else 3) + 6.0 * self.vocab * self.hidden

    def problems(self) -> Iterator[str]:
        """Yield why the sizes cannot be built."""
        h, a = self.hidden, self.heads
        if h % a:
            yield f"hidden / heads = {h} / {a} = {h / a:.4g}: the head dimension must be a whole number"
        elif h // a % 2:
            yield f"hidden / heads = {h} / {a} = {h // a}: rotary positions need an even head dimension"
        if a % self.groups:
            yield f"heads / kv-heads = {a} / {self.groups} = {a / self.groups:.4g}: each group must have as many heads"
        if self.active > self.experts:
            yield f"active experts ({self.active}) exceed the experts ({self.experts})"

    def warnings(self) -> Iterator[str]:
        """Yield what is valid but slow on GPUs."""
        dim, odd = self.hidden / self.heads, f"not a multiple of {MULTIPLE}, so matrix products are slower"
        if dim.is_integer() and dim not in HEAD_DIMS:
            yield f"head dimension {dim:.0f}: attention kernels are fastest with 64 or 128"
        for name, value in (("hidden", self.hidden), ("ffn", self.inner), ("vocab", self.vocab)):
            if value % MULTIPLE:
                yield f"{name} {value} is {odd}"

    def check(self) -> None:
        """Check that the transformer can be built.

        Raises:
            JobError: It cannot; says why.
        """
        if wrong := list(self.problems()):
            raise JobError(f"{self.words()} is invalid: {'; '.join(wrong)}. `--explain` shows the nearest valid sizes.")

    def words(self) -> str:
        """Return the sizes in one line."""
        dim = self.hidden / self.heads
        parts = [f"{self.layers} x {self.hidden}", f"{self.heads} heads x {dim:.4g}", f"ffn {self.inner}"]
        if self.groups != self.heads:
            parts.insert(2, f"{self.groups} kv-heads")
        if self.experts > 1:
            parts.append(f"{self.active} of {self.experts} experts")
        parts += [form for form, is_so in (("SwiGLU", self.gated), ("tied", self.tied)) if is_so]
        return ", ".join(parts)
