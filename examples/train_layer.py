"""Trains a small picture classifier whose attention is MHLA: 60 steps on squares and crosses."""

import torch
import torch.nn.functional as F

import mhla


def pictures(count):
    """16x16 pictures [count, 1, 16, 16] of a frame (label 0) or a cross (label 1), with noise."""
    labels = torch.randint(0, 2, (count,))
    frame, cross = torch.zeros(16, 16), torch.zeros(16, 16)
    frame[3:13, 3:13] = 1
    frame[5:11, 5:11] = 0
    cross[7:9] = 1
    cross[:, 7:9] = 1
    return torch.stack([frame, cross])[labels].unsqueeze(1) + 0.5 * torch.randn(count, 1, 16, 16), labels


class Classifier(torch.nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        layout = mhla.Grid((8, 8), block=(4, 4))  # 64 tokens in 4 blocks
        self.embed = torch.nn.Conv2d(1, dim, 2, stride=2)
        self.position = torch.nn.Parameter(torch.randn(1, 64, dim) * 0.5)
        self.norm = torch.nn.LayerNorm(dim)
        self.attention = mhla.nn.MHLA(dim, heads=4, layout=layout, preset="paper")
        self.head = torch.nn.Linear(dim, 2)

    def forward(self, picture):  # [B, 1, 16, 16] -> [B, 2]
        x = self.embed(picture).flatten(2).transpose(1, 2)  # [B, 64, dim], raster order
        x = x + self.position
        x = x + self.attention(self.norm(x))
        return self.head(x.mean(1))


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(60):
    x, labels = pictures(64)
    loss = F.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mhla.constrain_(model)  # mixing weights stay in [0, 1]
    if step % 20 == 19:
        print(f"step {step + 1}: loss {loss.item():.3f}")
x, labels = pictures(512)
accuracy = (model(x).argmax(1) == labels).float().mean().item()
print(f"accuracy on new pictures: {accuracy:.2f}")
assert accuracy > 0.9
