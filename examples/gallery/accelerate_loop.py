"""The same training with Accelerate, watched by one line around the loop.

`hasten profile` and `hasten tune` need no such line; they take any script as it is.
"""

import sys

import torch
from accelerate import Accelerator
from tones import Tones, make_model
from torch.nn import functional as F  # noqa: N812 - the usual name
from torch.utils.data import DataLoader

import hasten

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
accelerator = Accelerator(cpu=True)
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(
    model, optimizer, DataLoader(Tones(8192), batch_size=32, shuffle=True)
)

with (
    hasten.attach() as watched
):  # hasten.attach(plan="hasten.toml") trains under a plan
    for _ in range(epochs):
        for recordings, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(recordings), labels)
            accelerator.backward(loss)
            optimizer.step()
print(watched.summary())
