"""A plain loop, with options for common mistakes."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Points and their class. Reading takes a while, and may add noise."""

    def __init__(self, num: int, wait_s: float, noise: bool) -> None:
        self.x = torch.randn(num, 16, generator=torch.Generator().manual_seed(0))
        self.wait_s, self.noise = wait_s, noise

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.wait_s)
        x = self.x[index]
        return (x + 0.1 * torch.randn(16) if self.noise else x), int(x.sum() > 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--wait", type=float, default=0.0)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--raise-at", type=int, default=-1)
    parser.add_argument("--save", default="")
    asked = parser.parse_args()
    if asked.seed is not None:
        torch.manual_seed(asked.seed)
    loader = DataLoader(Rows(asked.rows, asked.wait, asked.noise), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = 0
    for _ in range(asked.epochs):
        for x, y in loader:
            optimizer.zero_grad(set_to_none=False)
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if step == asked.raise_at:
                raise ValueError("in the middle")
            step += 1
        if asked.save:
            torch.save(model.state_dict(), asked.save)
    print("fused", optimizer.param_groups[0].get("fused"), "workers", loader.num_workers)
    print("sum", sum(p.double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
