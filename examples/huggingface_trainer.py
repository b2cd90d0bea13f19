"""Hugging Face's Trainer with CAMRI's loss, on a small ViT with random weights: nothing is downloaded.

python examples/huggingface_trainer.py
"""

import tempfile

import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import camri
from camri.data import Split, hold_out, load


class CamriTrainer(Trainer):
    """A Trainer with a camri loss: it follows the model to its device and into eval(), where margins are off."""

    def __init__(self, *args, loss: torch.nn.Module, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss = loss.to(self.args.device)
        self.model_accepts_loss_kwargs = False  # the loss is a batch mean: divide it by the accumulation steps

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = self.loss.train(model.training)(outputs.logits, labels)
        return (loss, outputs) if return_outputs else loss


def as_rows(split: Split) -> list[dict]:
    images = split.inputs.permute(0, 3, 1, 2) / 255
    return [{"pixel_values": image, "labels": label} for image, label in zip(images, split.labels, strict=True)]


def main(num_epochs: int = 12) -> CamriTrainer:
    data = hold_out(load("digits"), fraction=0.2)
    eight = data.class_index("8")
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=2, num_channels=1, **sizes))
    camri.replace_head(model, data.num_classes)  # its `logits` are cosines now: `loss.logits` scales them for softmax

    def measure(predicted) -> dict[str, float]:
        labels, right = predicted.label_ids, predicted.predictions.argmax(axis=1) == predicted.label_ids
        return {"accuracy": right.mean().item(), "recall": right[labels == eight].mean().item()}

    arguments = TrainingArguments(
        tempfile.mkdtemp(), num_train_epochs=num_epochs, per_device_train_batch_size=32, learning_rate=3e-3,
        eval_strategy="epoch", logging_strategy="epoch", save_strategy="no", report_to="none", seed=0,
    )  # fmt: skip
    loss = camri.CamriLoss(data.num_classes, important={eight: 0.3}, scale=8.0, ramp=100)
    train, val = (as_rows(data.splits[part]) for part in ("train", "val"))
    trainer = CamriTrainer(model, arguments, None, train, val, compute_metrics=measure, loss=loss)
    trainer.train()
    return trainer


if __name__ == "__main__":
    print(main().evaluate())
