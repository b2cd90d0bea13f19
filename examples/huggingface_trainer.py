"""Train a small ViT (random weights, nothing is downloaded) with CAMRI's loss in Hugging Face's Trainer.

Run it: `python examples/huggingface_trainer.py`
"""

import tempfile

import torch
from torch.utils.data import StackDataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import camri
from camri.data import hold_out, load


class CosineViT(ViTForImageClassification):
    """A ViT whose `logits` are cosines; as a class, so that `from_pretrained` builds the same head."""

    def __init__(self, config):
        super().__init__(config)
        camri.replace_head(self, config.num_labels)

    def _init_weights(self, module):  # called if the checkpoint has no head, or one of another size
        module.reset_parameters() if isinstance(module, camri.CosineHead) else super()._init_weights(module)


class CamriTrainer(Trainer):
    """Trainer that moves the loss to the device and switches it to eval(), where margins are off."""

    def __init__(self, *args, loss: torch.nn.Module, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss = loss.to(self.args.device)
        self.model_accepts_loss_kwargs = False  # the loss is a batch mean: divide it by the accumulation steps

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = self.loss.train(model.training)(outputs.logits, labels)
        return (loss, outputs) if return_outputs else loss


def main(num_epochs: int = 12) -> CamriTrainer:
    data = hold_out(load("digits"), fraction=0.2)
    splits = (data.splits["train"], data.splits["val"])
    train, val = (StackDataset(pixel_values=s.inputs.permute(0, 3, 1, 2) / 255, labels=s.labels) for s in splits)
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    model = CosineViT(ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=data.num_classes, **sizes))
    loss = camri.CamriLoss(data.num_classes, important={data.class_index("8"): 0.3}, scale=8.0, ramp=100)
    arguments = TrainingArguments(
        tempfile.mkdtemp(), num_train_epochs=num_epochs, per_device_train_batch_size=32, learning_rate=3e-3, seed=0,
        eval_strategy="epoch", save_strategy="no", report_to="none")  # fmt: skip
    trainer = CamriTrainer(model, arguments, train_dataset=train, eval_dataset=val, loss=loss)
    trainer.train()
    return trainer


if __name__ == "__main__":
    print(main().evaluate())
