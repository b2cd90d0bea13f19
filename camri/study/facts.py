"""A study's data set, and what all its outcomes share."""

from collections.abc import Callable

from camri.data import DataSet, hold_out, make_test, thin_out
from camri.study.records import SPLITS, RunFacts
from camri.study.spec import Study


def load_data(study: Study, progress: Callable[[int, int], None] | None = None) -> DataSet:
    """The study's data with its splits: the data set's own where it has them, otherwise drawn by the study's seed."""
    from camri.data import load  # the readers need Pillow, which who brings a data set along need not have

    data = load(study.data, **dict(study.data_options), progress=progress)
    if "test" not in data.splits:
        data = make_test(data, fraction=study.test_fraction, seed=study.split_seed)
    if "val" not in data.splits and study.val_fraction:
        data = hold_out(data, "val", study.val_fraction, study.split_seed)
    return thin_out(data, dict(study.thin), study.split_seed) if study.thin else data


def facts_of(study: Study, data: DataSet) -> RunFacts:
    """What a run of this study on this data holds once for all outcomes."""
    spec = study.to_json()
    splits = {name: data.splits[name] for name in SPLITS if name in data.splits}
    return RunFacts(
        fingerprint=data.fingerprint,
        classes=data.classes,
        data={
            "name": data.name,
            "provenance": dict(data.provenance),
            "rows": {name: len(split) for name, split in data.splits.items()},
            "input_shape": list(data.input_shape),
        },
        training=spec["training"],
        asked=[spec["important"], study.important_from],
        labels={name: split.labels.cpu().numpy() for name, split in splits.items()},
        groups={name: split.groups.cpu().numpy() for name, split in splits.items() if split.groups is not None},
    )
