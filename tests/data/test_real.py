"""The real data sets, where CAMRI_DATA names their folder: counts, checksums, names, tracks, duplicates."""

import csv
import hashlib
import os
from pathlib import Path

import pytest
import torch

from camri.data import DataSet, decode, hold_out
from camri.data.published import BINARY_MD5, CIFAR10_CLASSES, OFFICIAL_SHA256

from .conftest import Loader


def sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


@pytest.fixture(scope="session")
def cifar10(real_data: Loader) -> DataSet:
    return real_data("cifar10")


@pytest.fixture(scope="session")
def gtsrb(real_data: Loader) -> DataSet:
    return real_data("gtsrb")


def test_cifar10_pixels_and_order(cifar10: DataSet) -> None:
    assert sha256(cifar10.splits["train"].inputs) == OFFICIAL_SHA256["train"]
    assert sha256(cifar10.splits["test"].inputs) == OFFICIAL_SHA256["test"]
    assert cifar10.provenance["verified"] is True
    assert cifar10.classes == CIFAR10_CLASSES
    assert cifar10.class_index("cat") == 3
    assert cifar10.class_counts("train").tolist() == [5000] * 10
    assert cifar10.class_counts("test").tolist() == [1000] * 10


def test_cifar10_is_the_published_binary_batches(cifar10: DataSet) -> None:
    train, test = cifar10.splits["train"], cifar10.splits["test"]
    pieces = [(train.inputs[k : k + 10_000], train.labels[k : k + 10_000]) for k in range(0, 50_000, 10_000)]
    for (pixels, labels), md5 in zip([*pieces, (test.inputs, test.labels)], BINARY_MD5.values(), strict=True):
        planes = pixels.permute(0, 3, 1, 2).reshape(len(labels), -1)
        batch = torch.cat([labels[:, None].to(torch.uint8), planes], dim=1)
        assert hashlib.md5(batch.numpy().tobytes()).hexdigest() == md5


def test_cifar10_is_decoded_once(cifar10: DataSet, real_data: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "for_each", lambda *_: pytest.fail("it was decoded again"))
    again = real_data("cifar10")
    assert again.fingerprint == cifar10.fingerprint
    assert again.splits["test"].inputs.equal(cifar10.splits["test"].inputs)


def test_cifar10_validation_split_is_pinned(cifar10: DataSet) -> None:
    data = hold_out(cifar10, fraction=0.1, seed=0)
    assert data.class_counts("val").tolist() == [500] * 10
    assert data.provenance["splits"][0]["sha256"] == CIFAR10_VAL_ROWS


CIFAR10_VAL_ROWS = "c874e937c8fdc2c436dc5b7ebfce70243a3a0477a2a4332837062e1837c6bc30"


def test_gtsrb_counts_and_names(gtsrb: DataSet) -> None:
    with (Path(os.environ["CAMRI_DATA"]) / "gtsrb" / "class_counts.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert gtsrb.classes == tuple(row["name"] for row in rows)
    assert gtsrb.class_counts("train").tolist() == [int(row["train"]) for row in rows]
    assert gtsrb.class_counts("test").tolist() == [int(row["test"]) for row in rows]
    assert (len(gtsrb.splits["train"]), len(gtsrb.splits["test"])) == (39_209, 12_630)
    assert gtsrb.input_shape == (48, 48, 3)


def test_gtsrb_tracks_are_never_split(gtsrb: DataSet) -> None:
    data = hold_out(gtsrb, fraction=0.1, seed=0)
    train, val = data.splits["train"], data.splits["val"]
    assert train.groups is not None
    assert val.groups is not None
    assert not set(train.groups.tolist()) & set(val.groups.tolist())
    assert len(set(train.groups.tolist()) | set(val.groups.tolist())) == 1307
    assert len(train) + len(val) == 39_209
    counts = data.class_counts("val")
    assert counts.min() >= 30
    assert abs(len(val) / 39_209 - 0.1) < 0.01
    assert data.provenance["splits"][0]["sha256"] == GTSRB_VAL_ROWS


GTSRB_VAL_ROWS = "77b95c644abac79c7e272ee45c0d95f04b30aa2dda30746c8a1d07af67de535f"


def test_gtsrb_rows_are_sorted_by_class_track_and_frame(gtsrb: DataSet) -> None:
    groups = gtsrb.splits["train"].groups
    assert groups is not None
    assert (groups.diff() >= 0).all()
    assert (groups // 100_000).equal(gtsrb.splits["train"].labels)


def test_gtsrb_has_eight_duplicates(gtsrb: DataSet) -> None:
    (found,) = gtsrb.provenance["duplicates"]
    assert found["splits"] == ["train", "test"]
    assert len(found["rows"]) == 8
    for train_row, test_row in found["rows"]:
        assert gtsrb.splits["train"].inputs[train_row].equal(gtsrb.splits["test"].inputs[test_row])
        assert gtsrb.splits["train"].groups[train_row] == 14 * 100_000 + 23  # type: ignore[index]
        assert gtsrb.splits["test"].labels[test_row] == 14


def test_mnist(real_data: Loader) -> None:
    mnist = real_data("mnist")
    assert mnist.provenance["verified"] is True
    assert mnist.class_counts("train").tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert mnist.class_counts("test").tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist.input_shape == (28, 28, 1)
    assert mnist.splits["train"].labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert int(mnist.splits["train"].inputs[0].sum()) == 27_525
