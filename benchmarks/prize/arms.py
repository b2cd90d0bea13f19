"""The arms: what is trained differently in each, and what it is to be compared with."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torch import Tensor

from benchmarks.prize.margins import CosineMargin, hardest_margin
from camri.engine import spec
from camri.engine.replica import Job, make_criterion
from camri.errors import InputError, closest
from camri.losses import two_sided_margin_softmax
from camri.methods import MARGIN_UNIT, METHODS, Setting, setting
from camri.modules import Criterion
from camri.penalties import ClassKey

SCALE = 8.0
MARGIN_RAD = 4 * MARGIN_UNIT


@dataclass(frozen=True)
class Arm:
    """One way of training; the fields that are not given leave the fast schedule's training as it is."""

    name: str
    group: str
    method: str = "ce"
    knobs: dict[str, float] = field(default_factory=dict)
    loss: Callable[..., Tensor] | None = None  # in place of the method's, on its head
    margin: float = 0.0  # of that loss, in units of the cosine
    floor: str = ""  # the margin follows accuracy over this: cross-entropy's at the "final" or the same "epoch"
    uphill: str = ""  # sharpness-aware: the first step is uphill for "all" images or the "important" ones
    is_head_only: bool = False  # on the frozen trunk of cross-entropy
    is_distilled: bool = False
    members: str = ""  # the arm whose trials are put together; nothing is trained
    trained_alike: str = "ce"  # cross-entropy under the same training
    without_margin: str = ""  # the same with a margin of 0

    @property
    def is_for_the_class(self) -> bool:
        """Whether its training knows which classes are important."""
        return self.without_margin != "" or self.method == "wce" or self.uphill == "important"

    @property
    def needs_ce(self) -> bool:
        return bool(self.floor) or self.is_head_only or self.is_distilled

    def setting(self, important: tuple[int, ...]) -> Setting:
        is_classwise = any(knob.per_class for knob in METHODS[self.method].knobs.values())
        return setting(self.method, important if is_classwise else (), **self.knobs)

    def criterion(self, job: Job) -> Criterion:
        """Its loss, one number a sample."""
        if self.loss is None:
            made = make_criterion(self.setting(job.important), job)
        else:
            ramp = spec.ramp_steps(job.training, job.num_steps)
            margins: dict[ClassKey, float] = dict.fromkeys(job.important, self.margin)
            made = CosineMargin(self.loss, job.data.num_classes, margins, SCALE, ramp=ramp)
        made.reduction = "none"
        return made


def _l2softmax(name: str, group: str, **changes: object) -> Arm:
    return Arm(name, group, "l2softmax", {"s": SCALE}, **changes)  # type: ignore[arg-type]


def _camri(name: str, group: str, without_margin: str = "l2softmax", **changes: object) -> Arm:
    knobs = {"m": MARGIN_RAD, "s": SCALE}
    return Arm(name, group, "camri", knobs, without_margin=without_margin, **changes)  # type: ignore[arg-type]


# In the order of training: what is cheap and promising first.
ARMS = {
    arm.name: arm
    for arm in (
        Arm("ce", "controls"),
        _l2softmax("l2softmax", "controls"),
        _camri("camri", "controls"),
        *(
            _l2softmax(f"{name}_{m}", group, loss=loss, margin=m, without_margin="l2softmax")
            for name, group, loss in (("two_sided", "a", two_sided_margin_softmax), ("hardest", "b", hardest_margin))
            for m in (0.1, 0.2)
        ),
        Arm("head_ce", "d", is_head_only=True),
        _l2softmax("head_l2softmax", "d", is_head_only=True, trained_alike="head_ce"),
        _camri("head_camri", "d", "head_l2softmax", is_head_only=True, trained_alike="head_ce"),
        Arm("head_wce", "d", "wce", {"w": 2.0}, is_head_only=True, trained_alike="head_ce"),
        _camri("learned_final", "c", floor="final"),
        _camri("learned_epoch", "c", floor="epoch"),
        Arm("sam", "e", uphill="all"),
        Arm("sam_important", "e", uphill="important", trained_alike="sam"),
        Arm("ensemble_ce", "f", members="ce"),
        _l2softmax("ensemble_l2softmax", "f", members="l2softmax", trained_alike="ensemble_ce"),
        _camri("ensemble_camri", "f", "ensemble_l2softmax", members="camri", trained_alike="ensemble_ce"),
        Arm("distilled_ce", "g", is_distilled=True),
        _l2softmax("distilled_l2softmax", "g", is_distilled=True, trained_alike="distilled_ce"),
        _camri("distilled_camri", "g", "distilled_l2softmax", is_distilled=True, trained_alike="distilled_ce"),
    )
}
GROUPS = tuple(dict.fromkeys(arm.group for arm in ARMS.values()))


def choose_arms(words: Iterable[str]) -> list[Arm]:
    """The arms of these names and groups in the order of training, cross-entropy always among them.

    >>> [arm.name for arm in choose_arms(["b", "camri"])]
    ['ce', 'camri', 'hardest_0.1', 'hardest_0.2']
    """
    asked = set(words)
    for word in sorted(asked):
        if word not in ARMS and word not in GROUPS:
            raise InputError(f"--arms {word!r} is no arm; {closest(word, (*GROUPS, *ARMS))}")
    return [arm for arm in ARMS.values() if arm.name == "ce" or {arm.name, arm.group} & asked]
