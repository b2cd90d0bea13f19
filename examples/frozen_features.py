"""Compute the features of a frozen backbone once, then train a small network on top in seconds.

Run it: `python examples/frozen_features.py`

The backbone has random weights here, so that nothing is downloaded. Replace it by yours: a timm model with
`num_classes=0`, a torchvision model with `fc = nn.Identity()`, a transformer's pooled output.
"""

import tempfile

import numpy as np
import torch
from sklearn.metrics import classification_report, recall_score
from torch import nn

import camri
from camri.data import load


@torch.inference_mode()
def extract(backbone: nn.Module, images: torch.Tensor, batch_size: int = 256) -> np.ndarray:
    batches = (images[i : i + batch_size].permute(0, 3, 1, 2) / 255 for i in range(0, len(images), batch_size))
    return torch.cat([backbone.eval()(batch) for batch in batches]).numpy()


def main() -> dict[str, float]:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(1, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    data = load("digits")
    names = np.array(data.classes)
    X, y = extract(backbone, data.splits["train"].inputs), names[data.splits["train"].labels]
    X_test, y_test = extract(backbone, data.splits["test"].inputs), names[data.splits["test"].labels]

    # The estimator holds out part of X to tune the shift of "8"; X_test is used once.
    model = camri.CamriClassifier(important="8", margin=0.3, epochs=10, random_state=0).fit(X, y)
    predicted = model.predict(X_test)
    print(classification_report(y_test, predicted, digits=3))

    with tempfile.TemporaryDirectory() as folder:
        again = camri.CamriClassifier.load(model.save(f"{folder}/model"))  # safetensors and JSON
    same = bool((again.predict(X_test) == predicted).all())
    recall = recall_score(y_test, predicted, labels=["8"], average="macro")
    return {"recall": recall, "accuracy": (predicted == y_test).mean(), "same": same}


if __name__ == "__main__":
    main()
