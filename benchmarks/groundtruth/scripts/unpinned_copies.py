"""Large batches copied to the GPU from ordinary memory; the host waits for each copy."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    images = torch.randint(0, 256, (4096, 3, 224, 224), dtype=torch.uint8)
    store = images.pin_memory() if args.fixed and device.type == "cuda" else images
    labels = torch.randint(0, 10, (4096,))
    order = DataLoader(TensorDataset(torch.arange(0, 4096, 256)), batch_size=None, shuffle=True)
    model = nn.Sequential(nn.Conv2d(3, 16, 7, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 55 * 55, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step, start = 0, time.perf_counter()
    while step < args.steps:
        for (first,) in order:
            first = int(first)
            x = store[first : first + 256].to(device, non_blocking=args.fixed)  # truth: copy
            y = labels[first : first + 256].to(device)  # truth: copy
            loss = nn.functional.cross_entropy(model(x.float() / 255), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == args.steps:
                break
    print("loss", loss.item())
    print(f"{step} steps in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
