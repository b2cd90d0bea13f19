"""Made rows of a table of two classes whose truth is known, and files of them."""

import csv

import numpy as np

CLASSES = ("benign", "melanoma")


def made(num, *distances, seed=0, share=0.2, together=0.7, per_group=1):
    """Labels (N,), logits (N, 2) of models with normal scores at these distances, and groups (N,)."""
    drawn = np.random.default_rng(seed)
    groups = np.arange(num) // per_group
    labels = (drawn.random(groups[-1] + 1) < share).astype(int)[groups]
    common, tables = drawn.normal(size=num), []
    for distance in distances:
        value = distance * labels + np.sqrt(together) * common + np.sqrt(1 - together) * drawn.normal(size=num)
        log_odds = distance * value - distance**2 / 2 + np.log(share / (1 - share))
        tables.append(np.column_stack([np.zeros(num), log_odds]))
    return labels, tables, groups


def write(path, labels, scores, ids=None, order=None, **columns):
    """A CSV file of the rows."""
    order = np.arange(len(scores)) if order is None else order
    ids = [f"row {k}" for k in range(len(scores))] if ids is None else ids
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *([] if labels is None else ["label"]), *CLASSES, *columns])
        for k in order:
            label = [] if labels is None else [CLASSES[labels[k]]]
            writer.writerow([ids[k], *label, *map(repr, scores[k].tolist()), *(one[k] for one in columns.values())])
    return path
