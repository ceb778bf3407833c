"""A notebook turned into a script: prints the network's output at every step."""

# %%
import argparse
import sys
import time

import torch
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)

# %%
X, y = load_digits(return_X_y=True)
X = torch.tensor(X / 16.0, dtype=torch.float32)
y = torch.tensor(y)

# %%
net = torch.nn.Sequential(
    torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10)
)
opt = torch.optim.SGD(net.parameters(), lr=0.1)

# %%
t0 = time.time()
for i in range(args.steps):
    idx = torch.randint(0, len(X), (64,))
    out = net(X[idx])
    loss = torch.nn.functional.cross_entropy(out, y[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if not args.fixed or i % 100 == 0:
        print(f"step {i} loss {loss}")  # truth: print
        print("probabilities", out.softmax(dim=1)[:24])  # truth: print
        print("first weights", net[0].weight[:8], "bias", net[4].bias)  # truth: print
        sys.stdout.flush()  # truth: print

# %%
print(f"{args.steps} steps in {time.time() - t0:.3f} s")
