"""A plain training loop, as people write it.

hasten profile plain_loop.py
hasten tune plain_loop.py --budget 3m
hasten run --plan hasten-out/hasten.toml plain_loop.py
"""

import sys

import torch
from tones import Tones, make_model
from torch.nn import functional as F  # noqa: N812 - the usual name
from torch.utils.data import DataLoader

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
torch.manual_seed(0)
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train_loader = DataLoader(Tones(8192), batch_size=32, shuffle=True)
valid_loader = DataLoader(Tones(512, seed=1), batch_size=32)

for epoch in range(epochs):
    model.train()
    for recordings, labels in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(recordings), labels)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum(
            (model(recordings).argmax(1) == labels).sum().item()
            for recordings, labels in valid_loader
        )
    print(f"epoch {epoch}: loss {loss.item():.3f}, held-out accuracy {right / 512:.1%}")
