"""The same training in two processes that share each batch (DistributedDataParallel).

    hasten profile -m torch.distributed.run -- --nproc-per-node 2 two_ranks.py

Such a script can be profiled, and run under a plan. To tune with several ranks, write a
`hasten.Job` (tones_job.py).
"""

import os
import sys

import torch
from tones import Tones, make_model
from torch import distributed
from torch.nn import functional as F  # noqa: N812 - the usual name
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
distributed.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(make_model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = Tones(8192)
sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)

for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for recordings, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(recordings), labels)
        loss.backward()
        optimizer.step()
    print(f"rank {os.environ['RANK']}, epoch {epoch}: loss {loss.item():.3f}")
distributed.destroy_process_group()
