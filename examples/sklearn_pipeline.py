"""Find at least 80 % of the frauds, with the fewest false alarms: any scikit-learn pipeline, tuned by cross-validation.

Run it: `python examples/sklearn_pipeline.py`

The table has numbers, missing values and text. New rows have this recall with 95 % confidence.
"""

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import classification_report, recall_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import camri


def make_table(num_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Amount (some missing), hour and country of each payment; every tenth is a fraud."""
    drawn = np.random.default_rng(seed)
    is_fraud = drawn.random(num_rows) < 0.1
    amount = drawn.lognormal(3 + 1.2 * is_fraud)
    amount[drawn.random(num_rows) < 0.05] = np.nan
    hour = (drawn.normal(14 + 9 * is_fraud, 4) % 24).round(1)
    country = np.where(drawn.random(num_rows) < 0.5 * is_fraud, "elsewhere", drawn.choice(["here", "near"], num_rows))
    table = np.empty((num_rows, 3), dtype=object)  # a data frame will do as well
    table[:, 0], table[:, 1], table[:, 2] = amount, hour, country
    return table, np.where(is_fraud, "fraud", "fine")


def main() -> dict[str, float]:
    X, y = make_table(8000)
    X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
    numbers = make_pipeline(StandardScaler(), SimpleImputer())
    columns = make_column_transformer((numbers, [0, 1]), (OneHotEncoder(handle_unknown="ignore"), [2]))
    pipeline = make_pipeline(columns, LogisticRegression())

    model = camri.ImportantClassifier(pipeline, important="fraud", at_least=0.8, cv=5).fit(X_train, y_train)
    assert model.decision_ is not None
    print(model.decision_.rule.describe(model.classes_.tolist()))
    print(classification_report(y_test, model.predict(X_test), digits=3))
    plain = recall_score(y_test, model.estimator_.predict(X_test), pos_label="fraud")
    return {"plain": float(plain), "recall": float(recall_score(y_test, model.predict(X_test), pos_label="fraud"))}


if __name__ == "__main__":
    print(main())
