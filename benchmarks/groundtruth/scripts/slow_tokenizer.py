"""Next-word prediction; every batch is tokenized again with a long regular expression."""

import argparse
import re
import time
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.utils.data import DataLoader

WORD = re.compile(r"(?:[A-Za-z]+(?:'[a-z]+)?)|(?:\d+(?:\.\d+)?)|(?:[^\sA-Za-z0-9])")
LENGTH = 32


class Tokenizer:
    def __init__(self, texts):
        self.ids = {}
        for text in texts:
            for word in WORD.findall(text.lower()):
                self.ids.setdefault(word, len(self.ids))

    def encode(self, text):
        out = []  # truth: tokenize
        for match in WORD.finditer(text.lower()):  # truth: tokenize
            word = match.group(0)  # truth: tokenize
            out.append(self.ids[word])  # truth: tokenize
        return out  # truth: tokenize


def make_collate(tokenizer, cache):
    def collate(texts):
        rows = []
        for text in texts:  # truth: tokenize
            ids = cache[text] if cache else tokenizer.encode(text)  # truth: tokenize
            rows.append((ids * (LENGTH + 1))[: LENGTH + 1])  # truth: tokenize
        return torch.tensor(rows)  # truth: tokenize

    return collate


class NextWord(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.embed = nn.Embedding(vocab, 32)
        self.rnn = nn.GRU(32, 64, batch_first=True)
        self.out = nn.Linear(64, 64)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def main(args):
    torch.manual_seed(0)
    texts = [text[start : start + 4000] for text in topics.values() for start in range(0, max(len(text) - 4000, 1), 4000)]
    texts = [text for text in texts if WORD.search(text)]
    tokenizer = Tokenizer(texts)
    cache = {text: tokenizer.encode(text)[: LENGTH + 1] for text in texts} if args.fixed else None
    loader = DataLoader(texts, batch_size=32, shuffle=True, collate_fn=make_collate(tokenizer, cache))  # truth: tokenize
    model = NextWord(len(tokenizer.ids))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step, start = 0, time.perf_counter()
    while step < args.steps:
        for ids in loader:  # truth: tokenize
            logits = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten() % 64)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == args.steps:
                break
    print(f"loss {loss.item():.4f}")
    print(f"{step} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--fixed", action="store_true")
    main(parser.parse_args())
