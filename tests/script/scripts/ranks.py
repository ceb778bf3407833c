"""Two ranks under torchrun, their gradients averaged."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from common import Rows, fingerprint, make_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    dist.init_process_group("gloo")
    model = make_model()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = Rows()
    for x, y in DataLoader(rows, batch_size=4, sampler=DistributedSampler(rows, shuffle=False)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(x), y).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(fingerprint(model), os.environ.get("PYTHONPATH"), os.environ.get("HASTEN_ATTACH"), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
