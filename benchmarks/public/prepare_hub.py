"""Create folders in the form of the Hugging Face Hub's: models with random weights, and datasets of generated text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.public.prepare import lines_of_words, png

NUM_PAIRS = {"train": 480, "validation": 96, "test": 96}
"""Pairs of sentences. MRPC has 3,668, 408 and 1,725."""
NUM_CONVERSATIONS = 256
NUM_TOKENS = 4000
"""Size of a vocabulary."""
NUM_IMAGES = 256
IMAGE_SIDE = 64

METRIC = '''"""Accuracy and F1 of pairs of sentences."""

import datasets
import evaluate


class Glue(evaluate.Metric):
    def _info(self):
        kinds = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="accuracy and F1", citation="", inputs_description="", features=kinds)

    def _compute(self, predictions, references):
        pairs = list(zip(predictions, references))
        right = sum(a == b for a, b in pairs)
        found = sum(a == b == 1 for a, b in pairs)
        f1 = 2 * found / max(1, sum(a == 1 for a, _ in pairs) + sum(b == 1 for _, b in pairs))
        return {"accuracy": right / len(pairs), "f1": f1}
'''


def mrpc(folder: Path) -> None:
    """Pairs of lines of Python's standard library as MRPC, its scores, and a BERT of 4 layers of 256 with random weights."""
    lines = _sentences(2 * sum(NUM_PAIRS.values()))
    random = np.random.default_rng(0)
    place = folder / "nyu-mll" / "glue"
    place.mkdir(parents=True)
    files = []
    for split, count in NUM_PAIRS.items():
        with (place / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for index in range(count):
                first, second = lines.pop(), lines.pop()
                same = int(random.integers(0, 2))
                row = {"sentence1": first, "sentence2": first if same else second, "label": same, "idx": index}
                file.write(json.dumps(row) + "\n")
        files.append({"split": split, "path": f"{split}.jsonl"})
    configs = json.dumps([{"config_name": "mrpc", "data_files": files}])
    (place / "README.md").write_text(f"---\nconfigs: {configs}\n---\n", encoding="utf-8")
    (folder / "glue").mkdir()
    (folder / "glue" / "glue.py").write_text(METRIC, encoding="utf-8")
    _bert(folder / "bert-base-cased")


def conversations(folder: Path) -> None:
    """Conversations of lines of Python's standard library, and a Llama of 4 layers of 256 with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - needed for this script alone

    lines = _sentences(4 * NUM_CONVERSATIONS)
    (folder / "data").mkdir()
    with (folder / "data" / "train.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(NUM_CONVERSATIONS):
            turns = [{"role": role, "content": lines.pop()} for role in ("user", "assistant", "user", "assistant")]
            file.write(json.dumps({"messages": turns}) + "\n")
    tokenizer = _tokenizer(["<|im_start|>", "<|im_end|>", "<pad>"])
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<pad>"
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|> {{ m['role'] }} {{ m['content'] }} <|im_end|> {% endfor %}"
    )
    tokenizer.save_pretrained(folder / "model")
    _seed()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4,
        max_position_embeddings=512, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "model")


def diffusion(folder: Path) -> None:
    """256 random images of 64 pixels in `images`, and the description of a U-Net of 2.5 million parameters in `unet`."""
    random = np.random.default_rng(0)
    (folder / "images").mkdir()
    for number in range(NUM_IMAGES):
        coarse = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        pixels = np.kron(coarse, np.ones((IMAGE_SIDE // 8, IMAGE_SIDE // 8, 1), dtype=np.uint8))
        (folder / "images" / f"{number}.png").write_bytes(png(pixels))
    unet = {
        "_class_name": "UNet2DModel", "sample_size": 32, "in_channels": 3, "out_channels": 3, "layers_per_block": 1,
        "block_out_channels": [32, 64, 128], "down_block_types": ["DownBlock2D", "AttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "AttnUpBlock2D", "UpBlock2D"],
    }  # fmt: skip
    (folder / "unet").mkdir()
    (folder / "unet" / "config.json").write_text(json.dumps(unet), encoding="utf-8")


def _sentences(count: int) -> list[str]:
    lines = (" ".join(line[:60]) for line in lines_of_words(count * 40) if len(line) >= 8)
    return [line for line, _ in zip(lines, range(count), strict=False)]


def _tokenizer(special: Sequence[str]) -> Any:
    """Return a tokenizer of whole words, the most frequent ones of the sentences."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415 - needed for these scripts alone
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    counted = Counter(word for line in _sentences(4000) for word in line.split())
    known = [*special, "<unk>", *(word for word, _ in counted.most_common(NUM_TOKENS) if word != "<unk>")]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(known)}, unk_token="<unk>"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", additional_special_tokens=list(special))  # noqa: S106


def _bert(folder: Path) -> None:
    """Write a BERT of 4 layers of 256 with random weights, and a tokenizer of it."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast  # noqa: PLC0415

    folder.mkdir()
    counted = Counter(word for line in _sentences(4000) for word in line.split())
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(word for word, _ in counted.most_common(NUM_TOKENS))]
    (folder / "vocab.txt").write_text("\n".join(known) + "\n", encoding="utf-8")
    BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=False).save_pretrained(folder)
    _seed()
    config = BertConfig(
        vocab_size=len(known), hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    )
    BertForSequenceClassification(config).save_pretrained(folder)


def _seed() -> None:
    import torch  # noqa: PLC0415 - needed for the weights alone

    torch.manual_seed(0)
