"""A script that drops activations by a function, not by a module."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the usual name


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(16, 512), nn.Linear(512, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outward(F.dropout(self.inward(x).relu(), 0.5, training=self.training))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
for _ in range(2000):
    loss = F.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
