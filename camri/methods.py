"""The table of everything that can be trained: name -> head, loss, knobs and their grid.

A *method* is a row of that table, a *setting* a method with values for its knobs. Methods of other packages are entry
points of the group "camri.methods" (docs/study.md).
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from camri import modules, penalties
from camri.errors import InputError, closest
from camri.imports import find_installed

MARGIN_UNIT = math.pi / 64  # the paper's step for margins


@dataclass(frozen=True)
class Knob:
    """One number of a method: its grid, and whether each important class has its own.

    `neutral` is the value at which the knob does nothing, if there is one.
    """

    grid: tuple[float, ...]
    neutral: float | None = None
    per_class: bool = False


@dataclass(frozen=True)
class Method:
    """A row of the table. `make(num_classes, class_counts, knobs, **common)` returns its loss.

    In `make`, a per-class knob arrives as {class index: value}. `base` is the method this one becomes when every
    knob that has a neutral value is at it (None: it stays itself, but no longer depends on the important classes).
    """

    title: str
    loss: type[modules.Criterion]
    make: Callable[..., modules.Criterion]
    knobs: Mapping[str, Knob]
    base: str | None
    in_paper: bool = False

    @property
    def head(self) -> str:
        return self.loss.head


def _steps(first: float, last: float, step: float) -> tuple[float, ...]:
    return tuple(round(first + i * step, 10) for i in range(round((last - first) / step) + 1))


_ANGULAR = tuple(i * MARGIN_UNIT for i in range(9))
_SCALES = tuple(2.0**i for i in range(7))
_COSTS = _steps(1.0, 4.0, 0.2)


def _make_ldam(
    num_classes: int, class_counts: Sequence[int], knobs: dict[str, Any], **common: Any
) -> modules.Criterion:
    margins = penalties.ldam_margins(class_counts, knobs["max_m"])
    for index, extra in knobs["m"].items():
        margins[index] += extra
    return modules.LdamLoss(margins, knobs["s"], **common)


def _make_logit_adjusted(
    num_classes: int, class_counts: Sequence[int], knobs: dict[str, Any], **common: Any
) -> modules.Criterion:
    adjustments = penalties.log_priors(class_counts, knobs["tau"])
    for index, shift in knobs["d"].items():
        adjustments[index] -= shift
    return modules.LogitAdjustedLoss(adjustments, **common)


METHODS: dict[str, Method] = {
    "ce": Method(
        title="cross-entropy",
        loss=modules.CrossEntropyLoss,
        make=lambda n, counts, k, **common: modules.CrossEntropyLoss(**common),
        knobs={},
        base=None,
        in_paper=True,
    ),
    "wce": Method(
        title="WCE",
        loss=modules.WeightedCrossEntropyLoss,
        make=lambda n, counts, k, **common: modules.WeightedCrossEntropyLoss(n, k["w"], **common),
        knobs={"w": Knob(_steps(4, 40, 4), neutral=1.0, per_class=True)},
        base="ce",
        in_paper=True,
    ),
    "crwwce": Method(
        title="CRWWCE",
        loss=modules.RealWorldWeightCrossEntropyLoss,
        make=lambda n, counts, k, **common: modules.RealWorldWeightCrossEntropyLoss(n, k["fn"], k["fp"], **common),
        knobs={
            "fn": Knob((1.0, *_steps(4, 40, 4)), neutral=1.0, per_class=True),
            "fp": Knob(_COSTS, neutral=1.0, per_class=True),
        },
        base=None,
        in_paper=True,
    ),
    "wasserstein": Method(
        title="Wasserstein",
        loss=modules.WassersteinLoss,
        make=lambda n, counts, k, **common: modules.WassersteinLoss(n, k["c"], entropy=k["entropy"], **common),
        # paper: does not state its entropy weight / here: 0.01 / why: small beside the costs, so that the transport
        # decides; with one-hot labels the loss is exact for any value.
        knobs={"c": Knob(_COSTS, neutral=1.0, per_class=True), "entropy": Knob((0.01,))},
        base=None,
        in_paper=True,
    ),
    "l2softmax": Method(
        title="L2-softmax",
        loss=modules.L2SoftmaxLoss,
        make=lambda n, counts, k, **common: modules.L2SoftmaxLoss(n, k["s"], **common),
        knobs={"s": Knob(_SCALES)},
        base=None,
        in_paper=True,
    ),
    "arcface": Method(
        title="ArcFace",
        loss=modules.ArcFaceLoss,
        make=lambda n, counts, k, **common: modules.ArcFaceLoss(n, k["m"], k["s"], **common),
        knobs={"m": Knob(_ANGULAR, neutral=0.0), "s": Knob(_SCALES)},
        base="l2softmax",
        in_paper=True,
    ),
    "camri": Method(
        title="CAMRI",
        loss=modules.CamriLoss,
        make=lambda n, counts, k, **common: modules.CamriLoss(n, k["m"], k["s"], **common),
        knobs={"m": Knob(_ANGULAR, neutral=0.0, per_class=True), "s": Knob(_SCALES)},
        base="l2softmax",
        in_paper=True,
    ),
    "cosface": Method(
        title="CosFace on the important class",
        loss=modules.CosFaceLoss,
        make=lambda n, counts, k, **common: modules.CosFaceLoss(n, k["m"], k["s"], **common),
        knobs={"m": Knob(_steps(0.05, 0.4, 0.05), neutral=0.0, per_class=True), "s": Knob(_SCALES)},
        base="l2softmax",
    ),
    "two_sided": Method(
        title="margin on both sides",
        loss=modules.TwoSidedMarginLoss,
        make=lambda n, counts, k, **common: modules.TwoSidedMarginLoss(n, k["m"], k["s"], **common),
        knobs={"m": Knob(_steps(0.05, 0.4, 0.05), neutral=0.0, per_class=True), "s": Knob(_SCALES)},
        base="l2softmax",
    ),
    "ldam": Method(
        title="LDAM",
        loss=modules.LdamLoss,
        make=_make_ldam,
        knobs={
            "m": Knob((0.0, 0.1, 0.2, 0.3), neutral=0.0, per_class=True),
            "max_m": Knob((0.1, 0.3, 0.5), neutral=0.0),
            "s": Knob((8.0, 16.0, 32.0)),
        },
        base="l2softmax",
    ),
    "focal": Method(
        title="focal loss",
        loss=modules.FocalLoss,
        make=lambda n, counts, k, **common: modules.FocalLoss(
            k["gamma"],
            weights=penalties.important_vector(n, k["w"], elsewhere=1.0),
            **common,
        ),
        knobs={
            "gamma": Knob((0.5, 1.0, 2.0, 5.0), neutral=0.0),
            "w": Knob((1.0, 2.0, 4.0), neutral=1.0, per_class=True),
        },
        base="ce",
    ),
    "one_vs_rest": Method(
        title="one-vs-rest",
        loss=modules.OneVsRestLoss,
        make=lambda n, counts, k, **common: modules.OneVsRestLoss(n, k["w"], **common),
        knobs={"w": Knob((0.5, 1.0, 2.0, 4.0), neutral=0.0, per_class=True)},
        base="ce",
    ),
    "logit_adjusted": Method(
        title="logit adjustment",
        loss=modules.LogitAdjustedLoss,
        make=_make_logit_adjusted,
        knobs={
            "d": Knob((0.5, 1.0, 1.5, 2.0, 3.0), neutral=0.0, per_class=True),
            "tau": Knob((0.0, 1.0), neutral=0.0),
        },
        base="ce",
    ),
    "vector_scaling": Method(
        title="vector scaling",
        loss=modules.VectorScalingLoss,
        make=lambda n, counts, k, **common: modules.VectorScalingLoss(
            scales=penalties.important_vector(n, k["delta"], elsewhere=1.0),
            shifts=-penalties.important_vector(n, k["d"]),
            **common,
        ),
        knobs={
            "delta": Knob((0.6, 0.7, 0.8, 0.9, 1.0), neutral=1.0, per_class=True),
            "d": Knob((0.0, 1.0, 2.0), neutral=0.0, per_class=True),
        },
        base="ce",
    ),
}


def method(name: str) -> Method:
    """The method of that name.

    >>> method("camri").head
    'cosine'
    """
    if not find_installed(name, METHODS, "camri.methods"):
        raise InputError(
            f"method {name!r} is unknown; {closest(name, METHODS)}, or one of an installed package", argument="methods"
        )
    return METHODS[name]


@dataclass(frozen=True)
class Setting:
    """A method with a value for each of its knobs; a per-class knob has one value for each important class.

    Made by :func:`setting`, which checks names and values. Equal settings have equal :meth:`canonical` forms, whose
    `key` is the same on every machine and Python version.
    """

    method: str
    important: tuple[int, ...] = ()
    knobs: tuple[tuple[str, float | tuple[float, ...]], ...] = ()

    def criterion(
        self, num_classes: int, class_counts: Sequence[int] | None = None, **common: Any
    ) -> modules.Criterion:
        """The setting's loss; `common` goes to it: ramp, label_smoothing, reduction, beyond_pi for margins."""
        wrong = [index for index in self.important if not 0 <= index < num_classes]
        if wrong:
            raise InputError(
                f"important class {wrong[0]} is not a class; there are {num_classes}, 0 to {num_classes - 1}"
            )
        values = {
            name: dict(zip(self.important, value, strict=True)) if isinstance(value, tuple) else value
            for name, value in self.knobs
        }
        counts = [1] * num_classes if class_counts is None else class_counts
        if len(counts) != num_classes:
            raise InputError(f"class_counts has {len(counts)} counts, but num_classes={num_classes}; give one a class")
        return method(self.method).make(num_classes, counts, values, **common)

    @property
    def head(self) -> str:
        return method(self.method).head

    def canonical(self) -> "Setting":
        """The simplest setting that trains the same: classes whose knobs are all neutral dropped, then the base method.

        >>> setting("camri", 3, m=0.0, s=8.0).canonical() == setting("arcface", m=0.0, s=8.0).canonical()
        True
        """
        entry, values = method(self.method), dict(self.knobs)
        per_class = {name: v for name, v in values.items() if isinstance(v, tuple)}
        kept = [
            place
            for place in range(len(self.important))
            if any(v[place] != entry.knobs[name].neutral for name, v in per_class.items())
        ]
        whole = {name: v for name, v in values.items() if not isinstance(v, tuple)}
        neutral = all(
            v == entry.knobs[name].neutral for name, v in whole.items() if entry.knobs[name].neutral is not None
        )
        if not kept and neutral and entry.base is not None:
            base = METHODS[entry.base]
            return Setting(entry.base, (), tuple((name, values[name]) for name in base.knobs))
        order = sorted(kept, key=lambda place: self.important[place])
        values.update({name: tuple(v[place] for place in order) for name, v in per_class.items()})
        important = tuple(self.important[place] for place in order)
        return Setting(self.method, important, tuple((name, values[name]) for name in entry.knobs))

    @property
    def key(self) -> str:
        """Sixteen hexadecimal digits, the same for settings that train the same."""
        simplest = self.canonical()
        text = json.dumps([simplest.method, simplest.important, simplest.knobs], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {"method": self.method, "important": list(self.important), "knobs": dict(self.knobs)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Setting":
        return setting(values["method"], values["important"], **values["knobs"])

    def __str__(self) -> str:
        """A line for people: margins of the angular methods in π/64.

        >>> print(setting("camri", 3, m=4 * MARGIN_UNIT, s=16))
        camri m=4π/64 s=16
        """
        return " ".join([self.method, *(f"{name}={self._shown(name, value)}" for name, value in self.knobs)])

    def _shown(self, name: str, value: float | tuple[float, ...]) -> str:
        values = value if isinstance(value, tuple) else (value,)
        if name == "m" and method(self.method).knobs["m"].grid == _ANGULAR:
            return ",".join(f"{v / MARGIN_UNIT:.4g}π/64" for v in values)
        return ",".join(f"{v:.4g}" for v in values)


def setting(
    name: str,
    important: int | Iterable[int] = (),
    **knobs: float | Sequence[float] | Mapping[int, float],
) -> Setting:
    """A checked setting: method name, important class indices, a value for each knob.

    A per-class knob takes one number for all important classes, one a class in their order, or {class: number}.

    >>> setting("camri", [3, 5], m={3: 0.2, 5: 0.1}, s=8.0).knobs
    (('m', (0.2, 0.1)), ('s', 8.0))
    """
    entry = method(name)
    given_classes = [important] if isinstance(important, (int, str, float, Integral)) else list(important)
    for index in given_classes:
        if not isinstance(index, (int, Integral)):
            raise InputError(f"important class {index!r} is no index; give whole numbers from 0 on")
    classes = tuple(int(index) for index in given_classes)
    if len(set(classes)) != len(classes):
        raise InputError(f"important={list(classes)} names a class twice; give each once", argument="important")
    for unknown in knobs.keys() - entry.knobs.keys():
        raise InputError(
            f"{name} has no knob {unknown!r}; {closest(unknown, entry.knobs) if entry.knobs else 'it has none'}"
        )
    for missing in [knob for knob in entry.knobs if knob not in knobs]:
        raise InputError(f"{name} needs a value for {missing!r}; its knobs: {', '.join(entry.knobs)}")
    values: list[tuple[str, float | tuple[float, ...]]] = []
    for knob_name, knob in entry.knobs.items():
        given = knobs[knob_name]
        if not knob.per_class:
            values.append((knob_name, _number(name, knob_name, given)))
            continue
        if isinstance(given, Mapping):
            if set(given) != set(classes):
                raise InputError(
                    f"{name} {knob_name}={dict(given)!r} does not name the important classes; give a value for each "
                    f"of {list(classes)}"
                )
            given = [given[index] for index in classes]
        elif not isinstance(given, Sequence):
            given = [given] * len(classes)
        if len(given) != len(classes):
            raise InputError(
                f"{name} {knob_name} has {len(given)} values for {len(classes)} important classes; give one for each, "
                "or one number for all"
            )
        values.append((knob_name, tuple(_number(name, knob_name, value) for value in given)))
    return Setting(name, classes, tuple(values))


def _number(name: str, knob: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)) or not math.isfinite(value):
        raise InputError(f"{name} {knob}={value!r} is not a finite number")
    return float(value)
