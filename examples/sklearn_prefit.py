"""Give a classifier that is already fitted a recall that holds on new rows: no refitting, and an ONNX file.

Run it: `python examples/sklearn_prefit.py`

The threshold is tuned on rows that the classifier was not fitted on, so the guarantee holds whatever the scores look
like.
"""

import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split

import camri
from camri.export import to_onnx


def main() -> dict[str, float]:
    X, y = make_classification(9000, 12, n_informative=6, n_classes=3, weights=[0.6, 0.3], random_state=0)
    y = np.array(["limit", "yield", "stop"])[y]
    X_train, X_rest, y_train, y_rest = train_test_split(X, y, stratify=y, test_size=2 / 3, random_state=0)
    X_tune, X_test, y_tune, y_test = train_test_split(X_rest, y_rest, stratify=y_rest, test_size=0.5, random_state=0)

    fitted = RandomForestClassifier(50, max_depth=8, random_state=0).fit(X_train, y_train)  # the one you have
    model = camri.ImportantClassifier(fitted, important="stop", at_least=0.9, cv="prefit").fit(X_tune, y_tune)
    assert model.decision_ is not None
    assert model.guarantee_ is not None
    print(model.decision_.rule.describe(model.classes_.tolist()))
    print(
        f"found {model.guarantee_.hits[0]} of {model.guarantee_.num[0]} rows it was tuned on; new rows: at least 90 %"
    )

    exported = to_onnx(model, X_tune.astype(np.float32))  # outputs: label, by the rule, and probabilities
    recalls = [recall_score(y_test, one.predict(X_test), labels=["stop"], average="macro") for one in (fitted, model)]
    return {"plain": float(recalls[0]), "recall": float(recalls[1]), "onnx_bytes": exported.ByteSize()}


if __name__ == "__main__":
    print(main())
