"""Chat models of Transformers, with attention that packs conversations exactly, and adapters of low rank.

`small_model` makes a model with random weights; `open_model` reads one from a folder. Nothing is downloaded, and no code of
a folder is run. Their attention gives the same results as that of Transformers. Called with `packing`, it attends to each
document of the row by itself, without a mask.
"""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hasten.core.errors import DataError, JobError
from hasten.core.packing import Packing, packed_attention
from hasten.recipes.needed import needed

ATTENTION = "hasten_packed"
"""Name of the attention, for Transformers."""


def small_model(num_tokens: int, *, width: int = 128, depth: int = 4, heads: int = 4, pad: int = 0) -> nn.Module:
    """Create a small Llama with random weights; input and output share one embedding.

    Args:
        num_tokens: Size of the vocabulary.
        width: Size of the embeddings, a multiple of twice the number of heads.
        depth: Number of layers.
        heads: Number of attention heads.
        pad: Padding token.

    Raises:
        JobError: The width does not fit the heads.
    """
    if width % (2 * heads):
        raise JobError(f"the width {width} must be a multiple of twice the number of heads, {2 * heads}.")
    lib = needed("transformers", extra="dialogue")
    config = lib.LlamaConfig(
        vocab_size=num_tokens,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        max_position_embeddings=2**17,
        tie_word_embeddings=True,
        pad_token_id=pad,
        bos_token_id=None,
        eos_token_id=None,
    )
    return _with_attention(lib.LlamaForCausalLM(config))


def open_model(folder: str | os.PathLike[str]) -> nn.Module:
    """Read a model of Transformers from a folder with safetensors weights, in float32.

    Raises:
        DataError: The folder has no such model.
    """
    auto = needed("transformers", extra="dialogue").AutoModelForCausalLM
    if not Path(folder).is_dir():
        raise DataError(f"{folder} is no folder: give one with config.json and model.safetensors.")
    try:
        model = auto.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=torch.float32
        )
    except Exception as error:  # it raises many kinds
        raise DataError(f"{folder} has no chat model that Transformers can load from safetensors: {error}") from error
    return _with_attention(model)


def with_adapters(model: nn.Module, rank: int, *, alpha: float | None = None) -> nn.Module:
    """Freeze a model and add LoRA adapters of this rank to all of its linear layers except the output layer.

    Source: Hu et al. 2021, "LoRA". Built by peft.

    Args:
        model: The model.
        rank: Rank of the adapters, at least 1.
        alpha: Their scale times the rank; None is twice the rank.

    Raises:
        JobError: The rank is below 1.
    """
    if rank < 1:
        raise JobError(f"the rank of adapters must be at least 1, not {rank}.")
    peft = needed("peft", extra="dialogue")
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha or 2 * rank, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft 0.21 uses a name that Transformers 5 deprecates
        adapted: nn.Module = peft.get_peft_model(model, config)
    return adapted


def packed_logits(model: nn.Module, ids: torch.Tensor, packing: Packing, where: torch.Tensor) -> torch.Tensor:
    """Return the logits at some positions of a packed row, each document attended to by itself.

    Args:
        model: A model of this module.
        ids: Tokens, int64 `[1, total]`.
        packing: The documents of the row.
        where: Positions, int64 `[counted]`. The output layer is computed at these alone.

    Returns:
        `[counted, vocabulary]`.
    """
    unused = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ids.device)  # a mask of four dimensions is not replaced
    logits: torch.Tensor = model(
        input_ids=ids,
        position_ids=packing.positions[None],
        attention_mask=unused,
        packing=packing,
        logits_to_keep=where,
        use_cache=False,
    ).logits[0]
    return logits


def _with_attention(model: nn.Module) -> nn.Module:
    lib: Any = needed("transformers", extra="dialogue")
    lib.AttentionInterface.register(ATTENTION, _attend)
    lib.AttentionMaskInterface.register(ATTENTION, needed("transformers.masking_utils").sdpa_mask)
    chat: Any = model
    chat.set_attn_implementation(ATTENTION)
    return model


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packing: Packing | None = None,
    scaling: float | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as Transformers expects it: `[batch, heads, length, head_dim]` to `[batch, length, heads, head_dim]`."""
    if packing is None:
        plain = needed("transformers.integrations.sdpa_attention").sdpa_attention_forward
        result: tuple[torch.Tensor, None] = plain(module, query, key, value, attention_mask, scaling=scaling, **settings)
        return result
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    usual = 1 / math.sqrt(query.shape[-1])
    if scaling is not None and scaling != usual:
        query = query * (scaling / usual)
    return packed_attention(query, key, value, packing, is_causal=True).transpose(1, 2), None
