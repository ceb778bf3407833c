"""Classify chapters of the Python manual by their sentences, each padded to the longest of all."""

import argparse
import re
import time
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

MAX_LEN = 256


class Sentences(Dataset):
    def __init__(self):
        names = sorted(topics)
        words = {}
        self.samples = []
        for label, name in enumerate(names):
            for sentence in re.split(r"\n\n|\. ", topics[name]):
                ids = [words.setdefault(w, len(words) + 1) for w in sentence.lower().split()][:MAX_LEN]
                if ids:
                    self.samples.append((torch.tensor(ids), label))
        self.num_words, self.num_classes = len(words) + 1, len(names)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


def pad_to_max(batch):
    out = torch.zeros(len(batch), MAX_LEN, dtype=torch.long)  # truth: padding
    for row, (ids, _) in enumerate(batch):
        out[row, : len(ids)] = ids  # truth: padding
    return out, torch.tensor([label for _, label in batch])  # truth: padding


def pad_to_longest(batch):
    return pad_sequence([ids for ids, _ in batch], batch_first=True), torch.tensor([label for _, label in batch])


class Classifier(nn.Module):
    def __init__(self, num_words, num_classes, dim=128):
        super().__init__()
        self.embed = nn.Embedding(num_words, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, ids):
        pad = ids == 0
        x = self.encoder(self.embed(ids), src_key_padding_mask=pad)
        x = x.masked_fill(pad.unsqueeze(-1), 0.0)
        return self.head(x.sum(1) / (~pad).sum(1, keepdim=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    data = Sentences()
    collate = pad_to_longest if args.fixed else pad_to_max
    loader = DataLoader(data, args.batch_size, shuffle=True, collate_fn=collate)  # truth: padding
    model = Classifier(data.num_words, data.num_classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step, start = 0, time.perf_counter()
    while step < args.steps:
        for ids, labels in loader:
            loss = nn.functional.cross_entropy(model(ids), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == args.steps:
                break
    print(f"loss {loss.item():.3f}")
    print(f"{step} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
