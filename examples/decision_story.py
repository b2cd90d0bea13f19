"""One decision's life: audited and committed, a new model compared with it, and checked on the rows of March.

Run it: `python examples/decision_story.py`

Every step is one command too: `camri audit … --save decision.json`, `camri compare`, `camri check decision.json`.
"""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

import camri


def take_rows(num: int, seed: int, blur: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of patients, a fifth of them with the disease; a blurred camera shows less of it."""
    drawn = np.random.default_rng(seed)
    is_ill = drawn.random(num) < 0.2
    radius = np.where(is_ill, blur * drawn.choice([-2.0, 2.0], num), 0.0)  # too small or too large: no linear sign
    X = drawn.normal(size=(num, 5)) + blur * 0.8 * is_ill[:, None]
    X[:, 0] = radius + drawn.normal(scale=0.7, size=num)
    return X, np.where(is_ill, "melanoma", "nevus")


def main() -> dict[str, str]:
    train, held_out = take_rows(3000, seed=0), take_rows(4000, seed=1)
    old = LogisticRegression().fit(*train)
    new = HistGradientBoostingClassifier(random_state=0).fit(*train)
    X, y = held_out
    how = {"important": "melanoma", "classes": old.classes_.tolist()}

    found = camri.audit(old.predict_proba(X), y, at_least=0.9, **how)
    print(str(found).splitlines()[1])
    compared = camri.compare(old.predict_proba(X), new.predict_proba(X), y, at_least=0.9, **how)
    print(str(compared).splitlines()[1])
    found = camri.audit(new.predict_proba(X), y, at_least=0.9, **how)  # the better model's own decision
    kinds = {"compare": compared.verdict.kind}
    with tempfile.TemporaryDirectory() as folder:
        decision = found.save(Path(folder) / "decision.json")  # what a team commits
        for month, blur in (("february", 1.0), ("march", 0.7)):
            X, y = take_rows(2000, seed=len(month), blur=blur)
            told = camri.check(decision, new.predict_proba(X), y)
            print(f"{month}: {str(told).splitlines()[0]}")
            kinds[month] = told.verdict.kind
    return kinds


if __name__ == "__main__":
    print(main())
