"""A plain PyTorch loop with a cosine head, CAMRI's loss and a shift tuned on validation data.

Run it: `python examples/plain_loop.py`
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import camri
from camri.data import Split, hold_out, load
from camri.decision import MostRecall, Scores, condense, tune


def as_tensors(split: Split) -> TensorDataset:
    return TensorDataset(split.inputs.permute(0, 3, 1, 2) / 255, split.labels)


def main(num_epochs: int = 6) -> dict:
    torch.manual_seed(0)
    data = hold_out(load("digits"), fraction=0.4)
    train, val, test = (as_tensors(data.splits[part]) for part in ("train", "val", "test"))
    loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True)
    eight = data.class_index("8")

    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.BatchNorm1d(64),
        camri.CosineHead(64, data.num_classes),
    )  # fmt: skip
    loss = camri.CamriLoss(data.num_classes, important={eight: 0.3}, scale=8.0, ramp=2 * len(loader))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    val_losses = []
    for _ in range(num_epochs):
        model.train()
        loss.train()
        for images, labels in loader:
            optimizer.zero_grad()
            loss(model(images), labels).backward()
            optimizer.step()
        model.eval()
        loss.eval()  # the margin is off, so losses compare between methods and along the ramp
        with torch.no_grad():
            val_losses.append(loss(model(val.tensors[0]), val.tensors[1]).item())

    def score(part: TensorDataset) -> Scores:
        with torch.no_grad():
            logits = loss.logits(model(part.tensors[0]))  # cosines times the scale
        return condense(logits.numpy(), part.tensors[1].numpy(), important=[eight])

    # Raise recall at no cost in validation accuracy. At inference, add the shift to the class's logit before argmax.
    rule = tune(score(val), MostRecall()).rule
    (before,), (after,) = score(test).recall().tolist(), score(test).recall(rule).tolist()
    return {"val_losses": val_losses, "recall": before, "shifted": after, "accuracy": score(test).accuracy(rule)}


if __name__ == "__main__":
    print(main())
