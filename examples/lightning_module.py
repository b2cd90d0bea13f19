"""A LightningModule with the loss as a submodule: Lightning moves it, saves it and switches it to eval().

Run it: `python examples/lightning_module.py`
"""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassRecall

import camri
from camri.data import hold_out, load


class Digits(lightning.LightningModule):
    def __init__(self, num_classes: int, important: dict[int, float], ramp: int):
        super().__init__()
        self.model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.BatchNorm1d(64), nn.Linear(64, 1000)
        )
        camri.replace_head(self.model, num_classes)  # the last linear layer becomes a CosineHead
        self.loss = camri.CamriLoss(num_classes, important, scale=8.0, ramp=ramp)
        self.important = list(important)
        self.recall = MulticlassRecall(num_classes, average=None)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.loss.logits(self.model(images))  # for softmax and argmax; the loss itself takes the cosines

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return self.loss(self.model(images), labels)

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.log("val_loss", self.loss(self.model(images), labels))  # Lightning called eval(): no margin
        self.recall.update(self(images), labels)

    def on_validation_epoch_end(self):
        self.log_dict({f"val_recall_{index}": self.recall.compute()[index] for index in self.important})
        self.recall.reset()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main(num_epochs: int = 8, **options) -> tuple[Digits, dict[str, float]]:
    lightning.seed_everything(0, verbose=False)
    data = hold_out(load("digits"), fraction=0.3)
    train, val = (TensorDataset(data.splits[p].inputs / 255, data.splits[p].labels) for p in ("train", "val"))
    loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True)
    module = Digits(data.num_classes, important={data.class_index("8"): 0.3}, ramp=2 * len(loader))
    trainer = lightning.Trainer(max_epochs=num_epochs, logger=False, enable_checkpointing=False, **options)
    trainer.fit(module, loader, DataLoader(val, batch_size=256))
    return module, {name: float(value) for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    print(main()[1])
