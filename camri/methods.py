"""The table of methods: for each its head, loss, knobs with their grids, control, title and colours.

A *method* is an entry of `METHODS`, a *setting* a method with values for its knobs. Everything about a method is in
its entry; reading the table needs no torch. Methods of other packages are entry points of the group "camri.methods"
(docs/study.md).
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from camri.errors import InputError, closest
from camri.imports import find_installed

if TYPE_CHECKING:
    from camri.modules import Criterion

MARGIN_UNIT = math.pi / 64  # the paper's step for margins
BASELINE = "ce"
FLOAT32_MAX = (2 - 2**-23) * 2.0**127
UNKNOWN_COLORS = ("#767676", "#6b6b6b", "#a3a7ad")  # default: print, light page, dark page
UNKNOWN_DASH = (4, 4)


@dataclass(frozen=True)
class Knob:
    """One parameter of a method: its grid, whether each important class has its own value, and what it does.

    `neutral` is the value at which the knob has no effect, if there is one. `is_angle`: the value is in radians.
    `search`: values that `camri fit` may propose, ascending; a knob without any stays neutral there. `later`: the
    method had no such knob at first. Where it is not named it is neutral, and a neutral one is left out of a setting's
    name and key, so that outcomes stored before stay valid.
    """

    grid: tuple[float, ...]
    neutral: float | None = None
    per_class: bool = False
    about: str = ""
    is_angle: bool = False
    search: tuple[float, ...] = ()
    later: bool = False


@dataclass(frozen=True)
class Method:
    """An entry of the table.

    `make(num_classes, class_counts, knobs, **common)` returns the loss; a per-class knob arrives as {class: value}.
    `base` is the method this one equals when all its knobs are neutral (None: no other method, but the important
    classes no longer matter). `control` is the method it is compared with at the same scale: the same head without a
    margin. `first`: settings that `camri fit` tries first; a fit only tries methods that have some. `colors` are for
    print, the light and the dark page.
    """

    title: str
    make: "Callable[..., Criterion]"
    knobs: Mapping[str, Knob]
    base: str | None
    head: str = "linear"
    control: str | None = None
    takes_beyond_pi: bool = False
    first: tuple[Mapping[str, float], ...] = ()
    colors: tuple[str, str, str] = UNKNOWN_COLORS
    dash: tuple[int, ...] = UNKNOWN_DASH


def _steps(first: float, last: float, step: float) -> tuple[float, ...]:
    return tuple(round(first + i * step, 10) for i in range(round((last - first) / step) + 1))


def _loss(name: str, *knobs: str, takes_counts: bool = False, **named: str) -> "Callable[..., Criterion]":
    """Return a `make` that builds a loss of camri.modules from knobs, by position or keyword. It imports torch."""

    def make(num_classes: int, class_counts: Sequence[int], values: dict[str, Any], **common: Any) -> "Criterion":
        from camri import modules

        given = common | {argument: values[knob] for argument, knob in named.items()}
        if takes_counts:
            given["class_counts"] = class_counts
        return getattr(modules, name)(num_classes, *(values[knob] for knob in knobs), **given)

    return make


def _make_cross_entropy(
    num_classes: int, class_counts: Sequence[int], knobs: dict[str, Any], **common: Any
) -> "Criterion":
    from camri import modules

    return modules.CrossEntropyLoss(**common)


def _make_two_sided(num_classes: int, class_counts: Sequence[int], knobs: dict[str, Any], **common: Any) -> "Criterion":
    from camri import modules

    margins = knobs["m"] or {0: 0.0}  # a margin at every class needs no important one
    return modules.TwoSidedMarginLoss(num_classes, margins, one_vs_rest=knobs["w"] or 0.0, margin=knobs["g"], **common)


def _make_one_vs_rest(
    num_classes: int, class_counts: Sequence[int], knobs: dict[str, Any], **common: Any
) -> "Criterion":
    return _make_two_sided(
        num_classes, class_counts, {"m": dict.fromkeys(knobs["w"], 0.0), **knobs, "g": 0.0}, **common
    )


_WEIGHT = "weight of the important class"
_ONE_VS_REST = "weight of “important or not?”"
_COSTS = _steps(1.0, 4.0, 0.2)
_ANGLES = tuple(i * MARGIN_UNIT for i in range(13))
_COSINE_MARGINS = _steps(0.05, 0.4, 0.05)
_SCALE = Knob(
    tuple(2.0**i for i in range(7)),
    about="factor of the cosines",
    search=(4.0, 8.0, 16.0, 32.0),  # few, so that finalists share their control
)


def _per_class(grid: tuple[float, ...], neutral: float, about: str, **more: Any) -> Knob:
    return Knob(grid, neutral, per_class=True, about=about, **more)


# Ordered as in the paper's Table I, then methods it does not have, then the baseline. Methods with the same dash differ
# in colour for every kind of colour vision (tests/report/test_look.py).
METHODS: dict[str, Method] = {
    "camri": Method(
        title="CAMRI",
        make=_loss("CamriLoss", "m", "s"),
        knobs={
            "m": _per_class(
                _ANGLES[:9], 0.0, "angular margin of the important class", is_angle=True, search=_ANGLES[1:]
            ),
            "s": _SCALE,
        },
        first=({"m": 8 * MARGIN_UNIT, "s": 8.0}, {"m": 4 * MARGIN_UNIT, "s": 16.0}),
        base="l2softmax",
        head="cosine",
        control="l2softmax",
        takes_beyond_pi=True,
        colors=("#D55E00", "#d55e00", "#f08a3c"),
        dash=(1, 0),
    ),
    "arcface": Method(
        title="ArcFace",
        make=_loss("ArcFaceLoss", "m", "s"),
        knobs={"m": Knob(_ANGLES[:9], 0.0, about="angular margin of every class", is_angle=True), "s": _SCALE},
        base="l2softmax",
        head="cosine",
        control="l2softmax",
        takes_beyond_pi=True,
        colors=("#CC79A7", "#b85a8f", "#e59ac6"),
        dash=(5, 3),
    ),
    "wasserstein": Method(
        title="Wasserstein",
        make=_loss("WassersteinLoss", "c", entropy="entropy"),
        # paper: does not state its entropy weight / here: 0.01 / why: small relative to the costs, so that the
        # transport decides; with one-hot labels the loss is exact for any value.
        knobs={
            "c": _per_class(_COSTS, 1.0, "cost of confusing the important class"),
            "entropy": Knob((0.01,), about="weight of the entropy term"),
        },
        base=None,
        colors=("#56B4E9", "#2f8fc9", "#7fc8f2"),
        dash=(2, 2),
    ),
    "crwwce": Method(
        title="CRWWCE",
        make=_loss("RealWorldWeightCrossEntropyLoss", "fn", "fp"),
        knobs={
            "fn": _per_class((1.0, *_steps(4, 40, 4)), 1.0, "cost of missing the important class"),
            "fp": _per_class(_COSTS, 1.0, "cost of a wrong guess from or to the important class"),
        },
        base=None,
        colors=("#E69F00", "#b87c00", "#f0b429"),
        dash=(8, 3, 2, 3),
    ),
    "wce": Method(
        title="WCE",
        make=_loss("WeightedCrossEntropyLoss", "w"),
        knobs={
            "w": _per_class(_steps(4, 40, 4), 1.0, _WEIGHT, search=(2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0))
        },
        first=({"w": 2.0}, {"w": 4.0}),
        base="ce",
        colors=("#0072B2", "#0072b2", "#4ba7e0"),
        dash=(1, 0),
    ),
    "l2softmax": Method(
        title="L2-softmax",
        make=_loss("L2SoftmaxLoss", "s"),
        knobs={"s": _SCALE},
        first=({"s": 8.0},),
        base=None,
        head="cosine",
        takes_beyond_pi=True,
        colors=("#009E73", "#00805e", "#35c795"),
        dash=(8, 3, 2, 3),
    ),
    "cosface": Method(
        title="CosFace on the important class",
        make=_loss("CosFaceLoss", "m", "s"),
        knobs={
            "m": _per_class(_COSINE_MARGINS, 0.0, "cosine margin of the important class", search=_COSINE_MARGINS),
            "s": _SCALE,
        },
        first=({"m": 0.2, "s": 8.0},),
        base="l2softmax",
        head="cosine",
        control="l2softmax",
        colors=("#8C5A2B", "#8c5a2b", "#c99565"),
        dash=(14, 4),
    ),
    "two_sided": Method(
        title="two-sided margin, cosine",
        make=_loss("TwoSidedCosineLoss", "m", "s"),
        knobs={
            "m": _per_class(_COSINE_MARGINS, 0.0, "cosine margin on both sides of the boundary"),
            "s": _SCALE,
        },
        base="l2softmax",
        head="cosine",
        control="l2softmax",
        colors=("#A04000", "#a04000", "#ffb27a"),
        dash=(10, 2, 2, 2, 2, 2),
    ),
    "two_sided_logits": Method(
        title="two-sided margin",
        make=_make_two_sided,
        knobs={
            "m": _per_class(
                (0.25, 0.5, 1.0, 2.0), 0.0, "logit margin on both sides", search=(0.25, 0.5, 1.0, 1.5, 2.0)
            ),
            "w": _per_class((0.0, 0.5), 0.0, _ONE_VS_REST, later=True, search=(0.0, 0.25, 0.5, 1.0)),
            "g": Knob((0.0, 2.0), 0.0, about="logit margin of every class", later=True, search=(0.0, 1.0, 2.0, 3.0)),
        },
        first=({"m": 1.0, "w": 0.5, "g": 2.0}, {"m": 1.0}),
        base="ce",
        colors=("#7A1F6B", "#7a1f6b", "#d98acb"),
        dash=(6, 2, 1, 2),
    ),
    "ldam": Method(
        title="LDAM",
        make=_loss("LdamLoss", "m", "s", max_margin="max_m", takes_counts=True),
        knobs={
            "m": _per_class((0.0, 0.1, 0.2, 0.3), 0.0, "extra cosine margin of the important class"),
            "max_m": Knob((0.1, 0.3, 0.5), neutral=0.0, about="cosine margin of the rarest class"),
            "s": Knob((8.0, 16.0, 32.0), about=_SCALE.about),
        },
        base="l2softmax",
        head="cosine",
        control="l2softmax",
        colors=("#7B61A8", "#7b61a8", "#b49ddf"),
        dash=(8, 3, 2, 3),
    ),
    "focal": Method(
        title="focal loss",
        make=_loss("FocalLoss", "w", "gamma"),
        knobs={
            "gamma": Knob((0.5, 1.0, 2.0, 5.0), neutral=0.0, about="how strongly easy samples are damped"),
            "w": _per_class((1.0, 2.0, 4.0), 1.0, _WEIGHT),
        },
        base="ce",
        colors=("#8A8D00", "#777a00", "#c9cc4a"),
        dash=(2, 2),
    ),
    "logit_adjusted": Method(
        title="logit adjustment",
        make=_loss("LogitAdjustedLoss", "d", tau="tau", takes_counts=True),
        knobs={
            "d": _per_class(
                (0.5, 1.0, 1.5, 2.0, 3.0), 0.0, "lowers the important logit in training", search=_steps(0.5, 3.0, 0.5)
            ),
            "tau": Knob((0.0, 1.0), neutral=0.0, about="share of the class frequencies taken out"),
        },
        first=({"d": 1.0}, {"d": 2.0}),
        base="ce",
        colors=("#B33A5B", "#b33a5b", "#ef7f9d"),
        dash=(2, 2),
    ),
    "vector_scaling": Method(
        title="vector scaling",
        make=_loss("VectorScalingLoss", "delta", "d"),
        knobs={
            "delta": _per_class(
                (0.6, 0.7, 0.8, 0.9, 1.0), 1.0, "scales the important logit in training", search=(0.6, 0.7, 0.8, 0.9)
            ),
            "d": _per_class(
                (0.0, 1.0, 2.0), 0.0, "lowers the important logit in training", search=_steps(0.0, 2.0, 0.5)
            ),
        },
        first=({"delta": 0.8, "d": 0.0},),
        base="ce",
        colors=("#3E8C9E", "#3e8c9e", "#7fcadb"),
        dash=(14, 4),
    ),
    "ce": Method(
        title="cross-entropy",
        make=_make_cross_entropy,
        knobs={},
        base=None,
        colors=("#4D4D4D", "#4d4d4d", "#c9c9c9"),
        dash=(1, 0),
    ),
}


# Methods that have become settings of another. They are no longer among the choices, but stored ones can be read.
FORMER: dict[str, Method] = {
    "one_vs_rest": Method(  # two_sided_logits with m = 0 and g = 0
        title="one-vs-rest",
        make=_make_one_vs_rest,
        knobs={"w": _per_class((0.5, 1.0, 2.0, 4.0), 0.0, _ONE_VS_REST)},
        base="ce",
        colors=("#5B7F2B", "#5b7f2b", "#a8cc7a"),
        dash=(5, 3),
    ),
}


def is_known(name: str) -> bool:
    """Whether the table, or an installed package, has the method, or the table had it formerly."""
    return name in FORMER or find_installed(name, METHODS, "camri.methods")


def title_of(name: str) -> str:
    """The method's title, or its name if its package is not installed."""
    return method(name).title if is_known(name) else name


def in_order(names: Iterable[str]) -> list[str]:
    """Sort methods as in the table; those of other packages come before cross-entropy, which is last.

    >>> in_order(["ce", "poly", "camri"])
    ['camri', 'poly', 'ce']
    """
    places: dict[str, float] = {name: place for place, name in enumerate(METHODS)}
    places |= dict.fromkeys(FORMER, places["logit_adjusted"] - 0.5)  # where they stood
    last = places[BASELINE]
    return sorted(names, key=lambda name: (places[name] if places.get(name, last + 1) <= last else last - 0.5, name))


def method(name: str) -> Method:
    """Return the method with this name.

    >>> method("camri").head
    'cosine'
    """
    if not is_known(name):
        raise InputError(
            f"method {name!r} is unknown; {closest(name, METHODS)}, or one of an installed package", argument="methods"
        )
    return FORMER[name] if name in FORMER else METHODS[name]


@dataclass(frozen=True)
class Setting:
    """A method with a value for each of its knobs; a per-class knob has one value for each important class.

    Create it with :func:`setting`, which checks names and values. Settings that train the same have equal
    :meth:`canonical` forms, whose `key` is the same on every machine and Python version.
    """

    method: str
    important: tuple[int, ...] = ()
    knobs: tuple[tuple[str, float | tuple[float, ...]], ...] = ()

    def criterion(self, num_classes: int, class_counts: Sequence[int] | None = None, **common: Any) -> "Criterion":
        """Create the setting's loss. `common`: ramp, label_smoothing, reduction, and beyond_pi for margins."""
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
        """The simplest setting that trains the same: no neutral classes, and the base method if all knobs are neutral.

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
        text = json.dumps([simplest.method, simplest.important, simplest.told], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def told(self) -> tuple[tuple[str, float | tuple[float, ...]], ...]:
        """The knobs without those that were added later and are neutral."""
        entries = method(self.method).knobs

        def is_off(name: str, value: float | tuple[float, ...]) -> bool:
            several = value if isinstance(value, tuple) else (value,)
            return entries[name].later and all(one == entries[name].neutral for one in several)

        return tuple((name, value) for name, value in self.knobs if not is_off(name, value))

    def to_json(self) -> dict[str, Any]:
        return {"method": self.method, "important": list(self.important), "knobs": dict(self.told)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Setting":
        return setting(values["method"], values["important"], **values["knobs"])

    def __str__(self) -> str:
        """The setting on one line; angular margins in π/64.

        >>> print(setting("camri", 3, m=4 * MARGIN_UNIT, s=16))
        camri m=4π/64 s=16
        """
        return " ".join([self.method, *(f"{name}={self._shown(name, value)}" for name, value in self.told)])

    def _shown(self, name: str, value: float | tuple[float, ...]) -> str:
        values = value if isinstance(value, tuple) else (value,)
        if method(self.method).knobs[name].is_angle:
            return ",".join(f"{v / MARGIN_UNIT:.4g}π/64" for v in values)
        return ",".join(f"{v:.4g}" for v in values)


def setting(
    name: str,
    important: int | Iterable[int] = (),
    **knobs: float | Sequence[float] | Mapping[int, float],
) -> Setting:
    """Create a checked setting from a method name, important class indices and a value for each knob.

    A per-class knob takes one number for all important classes, a sequence with one per class, or {class: number}.
    Knobs that a method got later may be left out.

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
    knobs |= {knob: one.neutral or 0.0 for knob, one in entry.knobs.items() if one.later and knob not in knobs}
    for missing in [knob for knob in entry.knobs if knob not in knobs]:
        raise InputError(f"{name} needs a value for {missing!r}; its knobs: {', '.join(entry.knobs)}")
    values: list[tuple[str, float | tuple[float, ...]]] = []
    for knob_name, knob in entry.knobs.items():
        given = knobs[knob_name]
        if not knob.per_class:
            values.append((knob_name, to_number(name, knob_name, given)))
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
        values.append((knob_name, tuple(to_number(name, knob_name, value) for value in given)))
    return Setting(name, classes, tuple(values))


def to_number(name: str, knob: str, value: Any) -> float:
    """Return a knob's value as a float; raise InputError unless it is finite in float32."""
    is_number = isinstance(value, (int, float, Real)) and not isinstance(value, bool)
    if not is_number or not abs(value) <= FLOAT32_MAX:
        raise InputError(f"{name} {knob}={value!r} is not a finite number")
    return float(value)


def control_of(setting: Setting) -> Setting | None:
    """The setting with the same head and scale but no margin; None if cross-entropy is the control.

    >>> print(control_of(setting("camri", 3, m=0.2, s=8.0)))
    l2softmax s=8
    """
    control = method(setting.method).control
    if control is None:
        return None
    values = dict(setting.knobs)
    plain = Setting(control, (), tuple((name, values[name]) for name in METHODS[control].knobs))
    return None if plain.key == setting.key else plain
