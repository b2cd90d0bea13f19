"""A timm model with a cosine head, fine-tuned with CAMRI's loss. Needs timm.

Run it: `python examples/timm_model.py`

The neck is a dense layer with batch norm. timm's pooled features come out of a ReLU, so all are positive and no two lie
more than 90 degrees apart; after the neck they can point anywhere.
"""

import timm
import torch
from torch.utils.data import DataLoader, TensorDataset

import camri
from camri.data import Split, hold_out, load


def as_tensors(split: Split) -> TensorDataset:
    images = split.inputs.permute(0, 3, 1, 2) / 255
    return TensorDataset(torch.nn.functional.interpolate(images, size=32), split.labels)


def main(name: str = "resnet10t", num_epochs: int = 4) -> dict[str, float]:
    torch.manual_seed(0)
    data = hold_out(load("digits"), fraction=0.2)
    eight = data.class_index("8")
    train, val = (as_tensors(data.splits[part]) for part in ("train", "val"))
    loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True)

    model = timm.create_model(name, pretrained=False, in_chans=1)  # pretrained=True downloads weights
    camri.replace_head(model, data.num_classes, neck=128)
    loss = camri.CamriLoss(data.num_classes, important={eight: 0.3}, scale=8.0, ramp=len(loader))
    # No weight decay on the head: its weight is normalised, so decay would only raise its learning rate.
    head = model.get_classifier()[-1].weight
    trunk = [parameter for parameter in model.parameters() if parameter is not head]
    groups = [{"params": trunk, "weight_decay": 0.05}, {"params": [head], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)

    model.train()
    losses = []
    for _ in range(num_epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            value = loss(model(images), labels)
            value.backward()
            optimizer.step()
            losses.append(value.item())
    with torch.no_grad():
        right = model.eval()(val.tensors[0]).argmax(dim=1) == val.tensors[1]
    recall = right[val.tensors[1] == eight].float().mean().item()
    return {"first": losses[0], "last": losses[-1], "accuracy": right.float().mean().item(), "recall": recall}


if __name__ == "__main__":
    print(main())
