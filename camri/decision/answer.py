"""The answer to the one question: which decision meets the goal, and is it better? A record; nothing in it is prose.

An audit, a fit and a comparison of models return one. The terminal, the page, the card and the notebook show it;
`to_json` writes it, and `answer_from_json` reads it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from camri.decision import record
from camri.decision.compare import Arm, Change, ClassResult, Comparison, Evidence, Share
from camri.decision.goals import (
    AtLeast,
    FewestToPerson,
    Goal,
    LeastCost,
    MostRecall,
    Within,
    goal_from_json,
    goal_to_json,
)
from camri.decision.guarantee import Guarantee
from camri.decision.rules import (
    PERSON,
    AnyRule,
    DecisionRule,
    LowestCost,
    Shift,
    Threshold,
    Triage,
    argmax_of,
    as_factor,
    is_argmax,
    rule_from_json,
)
from camri.decision.scores import Array, Scores
from camri.decision.tune import OperatingPoint
from camri.decision.verdict import Verdict
from camri.decision.where import Where
from camri.errors import InputError
from camri.files import replacing

FORMAT = 2
ANSWER_FILE = "answer.json"  # in the folder of a fit
# Beside it, of the model handed over: val_labels, val_logits, test_labels, test_logits, before its rule (N, C); test
# rows missed and false_alarms, at most 24 of each, worst first; and their inputs, missed_inputs and
# false_alarms_inputs, as the data set holds them: uint8 images (K, H, W, C) or features (K, D).
EXAMPLES_FILE = "examples.npz"
ABOUT_INPUT = ("empty_class", "cheaper_mistake", "copies")  # cautions that `audit` warns of
SUM_SLACK = 0.05  # the sum of probabilities may miss 1 by this

for _kind in cast(tuple[Any, ...], (AnyRule, DecisionRule, Shift, Threshold, LowestCost, Triage)):
    record.with_form(_kind, lambda rule: rule.to_json(), rule_from_json)
for _kind in cast(tuple[Any, ...], (Goal, MostRecall, AtLeast, Within, FewestToPerson, LeastCost)):
    record.with_form(_kind, goal_to_json, goal_from_json)


@dataclass(frozen=True)
class Source:
    """What was judged.

    scores_are: "logits" or "probabilities". unit: 100 for percentages, else 1. first_column: of two columns of logits
    that were made of one score d, 0 for [0, d] and -1 for [-d, d]. num_groups: None where rows count as independent.
    noun: what a row is called, in singular and plural. decimals: that probabilities are rounded to.
    """

    name: str
    classes: tuple[str, ...]
    important: tuple[int, ...]
    num_rows: int
    num_judged: int
    num_groups: int | None = None
    scores_are: str = "logits"
    unit: float = 1.0
    first_column: int | None = None
    decimals: int | None = None
    noun: tuple[str, str] = ("row", "rows")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the important classes."""
        return tuple(self.classes[index] for index in self.important)


@dataclass(frozen=True)
class Caution:
    """Something to know: a code that `camri.report.words` has a sentence for, and what it is about."""

    code: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    """A point of a rule's curve on the judged rows. Picked on the rows it is shown for: optimistic.

    value: of the rule. false_alarms: a share of all rows. precision: the important classes' mean, None where one is
    never predicted.
    """

    value: float
    recall: float
    accuracy: float
    false_alarms: float
    precision: float | None


@dataclass(frozen=True)
class HandedOver:
    """The model that a fit writes into its folder `model`.

    title: method and values ("two-sided margin, m=1"). epochs: of trees their iterations. before: the same network
    with the ordinary argmax; of another method or trees, the median seed of plain cross-entropy. after: with its rule.
    """

    method: str
    title: str
    seed: int
    model: str
    epochs: int
    rule: DecisionRule
    before: Arm
    after: Arm

    @property
    def is_redecided(self) -> bool:
        """Whether the rule differs from the ordinary argmax."""
        return not is_argmax(self.rule)


@dataclass(frozen=True)
class Length:
    """Validation accuracy of the baseline at one length of training."""

    epochs: int
    accuracy: float


@dataclass(frozen=True)
class Effort:
    """What a fit trained.

    enough: the option that would allow what there was no time for, such as "--budget 23m". given_up: what the plan left
    out for lack of time.
    """

    lengths: tuple[Length, ...]
    still_improving: bool
    training: str
    num_settings: int
    num_trials: int
    num_failed: int
    wall_s: float
    enough: str
    given_up: tuple[str, ...] = ()


@dataclass(frozen=True)
class Made:
    """How a fit came to its answer: the model, the effort, the rows of each split, the command."""

    handed: HandedOver
    effort: Effort
    num_rows: Mapping[str, int]
    command: str
    finished: bool


@dataclass(frozen=True)
class Workload:
    """What a triage does with the judged rows: shares of all rows, of the class, and of the alarms.

    missed: of the important class, how many are cleared. precision: of the alarms, how many are right.
    lowest_precision: its lower bound that was asked for, None where no cut-off has it; missing: how many alarms, all of
    them right, it takes at least.
    """

    cleared: Share
    alarms: Share
    person: Share
    missed: Share
    precision: Share
    lowest_precision: float | None
    missing: int = 0


@dataclass(frozen=True)
class TradeOff:
    """What is left to a person at other promises: shares of all rows; person is None where one cannot be given."""

    clear_misses: float
    alarm_precision: float
    cleared: float | None
    alarms: float | None
    person: float | None


@dataclass(frozen=True)
class AtRecall:
    """False alarms of a model at a recall, as a share of all rows, and the change from the present model."""

    recall: float
    false_alarms: float
    change: Change | None = None


@dataclass(frozen=True)
class Candidate:
    """One of several models that were compared: its own best rule, and the verdict on it.

    name: of its arm in the evidence. title: what it is called. verdict: None of the present model. curve: by rising
    recall, on the rows that tuned the rule.
    """

    name: str
    title: str
    point: OperatingPoint
    verdict: Verdict | None = None
    curve: tuple[AtRecall, ...] = ()


@dataclass(frozen=True)
class Distribution:
    """How the probability of the important class is distributed: how many rows, and quantiles at even steps.

    They begin with the smallest value and end with the largest.
    """

    num: int
    quantiles: tuple[float, ...]

    @staticmethod
    def of(values: Array, num_steps: int = 50) -> "Distribution":
        """The distribution of some values (N,), N > 0."""
        found = np.quantile(values, np.linspace(0, 1, num_steps + 1), method="inverted_cdf")
        return Distribution(len(values), tuple(float(f"{one:.9g}") for one in found))


@dataclass(frozen=True, eq=False)
class Answer:
    """Which decision meets the goal, what it changes, how sure that is, and what is guaranteed.

    point: the operating point. evidence: all arms on the judged rows. verdict: whether to change anything.
    tuned_on: "folds", "split" or "all": how the rows that tuned the rule and those that judge it were kept apart.
    prices: what more recall costs. both: each rule at the recall of the tuned one. where: the rule will run. made: of a
    fit. workload, trade_offs: of a triage. candidates: of a comparison of models, all of them, the present one first;
    margin: the difference that does not matter there. drawn: how the scores of all rows ("") and of each important
    class are distributed, for `check`.

    `rule` is what `predict` applies: of a fit the rule of the model handed over, of compared models that of the better
    one; else the tuned rule where the verdict advises it, or argmax.
    """

    source: Source
    goal: Goal
    point: OperatingPoint
    evidence: Evidence
    verdict: Verdict
    tuned_on: str = "all"
    num_folds: int = 0
    prices: tuple[Point, ...] = ()
    both: Mapping[str, Point] = field(default_factory=dict)
    cautions: tuple[Caution, ...] = ()
    where: Where = field(default_factory=Where)
    made: Made | None = None
    workload: Workload | None = None
    trade_offs: tuple[TradeOff, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    margin: float | None = None
    drawn: Mapping[str, Distribution] = field(default_factory=dict)
    format: int = FORMAT
    scores: Scores | None = field(default=None, repr=False, metadata={"json": False})
    labels: Array | None = field(default=None, repr=False, metadata={"json": False})

    @property
    def is_advised(self) -> bool:
        """Whether the tuned rule is advised: it meets the goal and differs from argmax."""
        return self.verdict.kind in ("change_the_decision", "clear_and_alarm")

    @property
    def is_a_choice(self) -> bool:
        """Whether the tuned rule surely raises recall, at an accuracy that is surely or probably lost."""
        return self.verdict.kind == "at_a_price"

    @property
    def is_changed(self) -> bool:
        """Whether the tuned rule is another than taking the largest score."""
        return not is_argmax(self.point.rule)

    @property
    def is_guaranteed(self) -> bool:
        """Whether the recall that was asked for is guaranteed."""
        return self.guarantee is not None and self.guarantee.is_given

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee that was asked for, or why there is none; None if none was asked for."""
        return self.point.guarantee

    @property
    def rule(self) -> AnyRule:
        """The rule to use: the tuned one where it is advised, of a fit's or the better model; else argmax."""
        if self.candidates:
            return self.advised.point.rule
        is_used = self.is_advised or self.made is not None
        return self.point.rule if is_used else argmax_of(self.source.important)

    @property
    def advised(self) -> Candidate:
        """Of compared models the one to use: the new one if it is better, else the present one."""
        name = self.verdict.arm if self.verdict.kind == "better" else self.candidates[0].name
        return next(one for one in self.candidates if one.name == name)

    @property
    def change(self) -> Comparison:
        """What the tuned rule changes, or the new model."""
        found = self.evidence.compare(self.evidence.final, self.evidence.arms[0].name)
        assert found is not None
        return found

    @property
    def own(self) -> tuple[ClassResult, ...]:
        """The results of the important classes."""
        return tuple(one for one in self.evidence.classes if one.important)

    @property
    def shift(self) -> float | None:
        """What to add to the important logits; None where the tuned rule is another."""
        return next(iter(self.point.rule.values.values())) if isinstance(self.point.rule, Shift) else None

    @property
    def factor(self) -> float | None:
        """What to multiply the important probabilities by; None for logits, and where the tuned rule is another."""
        if self.shift is None or self.source.scores_are != "probabilities":
            return None
        return as_factor(self.shift)

    def predict(self, scores: ArrayLike) -> Array:
        """Predict the label of each row (N, C) by `rule`: the labels as they came in; None is left to a person.

        scores: of the kind that was judged: logits, probabilities or percentages.
        """
        predicted = self.rule.predict(self._shares(scores), self.source.scores_are)
        if self.labels is None:
            return predicted
        if not isinstance(self.rule, Triage):
            return self.labels[predicted]
        named = np.asarray(self.labels, dtype=object)[predicted]
        named[predicted == PERSON] = None
        return named

    def _shares(self, scores: ArrayLike) -> Array:
        """The scores, checked to be of the kind that was judged; percentages become probabilities."""
        values, source = np.asarray(scores), self.source
        if values.ndim != 2 or values.shape[1] != len(source.classes):
            wrong = f"scores of shape {values.shape} do not fit {len(source.classes)} classes"
            raise InputError(f"{wrong}; give (N, {len(source.classes)})", argument="scores")
        shares = values.astype(np.float64) / source.unit
        if source.scores_are == "probabilities" and values.size:
            low, high = shares.min(), shares.max()
            if low < 0 or high > 1 + SUM_SLACK or (source.unit != 1 and shares.sum(axis=1).max() < 0.5):
                kind = "percentages" if source.unit == 100 else "probabilities"
                wrong = f"scores of {values.min():g} to {values.max():g} are no {kind}, which were judged"
                raise InputError(f"{wrong}; give the same kind", argument="scores")
        return shares

    def to_json(self) -> dict[str, Any]:
        """The answer as plain JSON; `answer_from_json` reads it."""
        found: dict[str, Any] = record.to_json(self)
        return found

    def save(self, path: str | Path) -> Path:
        """Write the answer as JSON, whole or not at all, and return the path."""
        target = Path(path)
        with replacing(target, "; choose another file") as part:
            part.write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return target

    def report(self, path: str | Path, name: str | None = None) -> Path:
        """Write the page, one self-contained file, and return the path; needs the report extra."""
        return _show("decision_page").write_answer(self, Path(path), name or self.source.name)

    def warnings(self) -> list[str]:
        """The cautions about the rows and costs that were given, as sentences."""
        kept = [one for one in self.cautions if one.code in ABOUT_INPUT]
        return [_show("words").caution_text(one, self) for one in kept]

    def __str__(self) -> str:
        if self.made is not None:
            return "\n".join(_show("fit_words").compose(self))
        return str(_show("words").text_of(self))

    def __repr__(self) -> str:
        return str(_show("words").line_of(self))

    def _repr_html_(self) -> str:
        return str(_show("decision_page").html_of(self))


def _show(module: str) -> Any:
    """A module of the report, which an answer is shown by; the core itself does not import it."""
    return import_module(f"camri.report.{module}")


def answer_from_json(stored: Any, where: str = "the answer") -> Answer:
    """Read the answer that `Answer.to_json` wrote; others are refused in a sentence."""
    if not isinstance(stored, dict) or "format" not in stored or "verdict" not in stored:
        raise InputError(f"{where} is no answer of camri; write one with `camri audit --save`")
    if stored["format"] != FORMAT:
        raise InputError(f"{where} has format {stored['format']!r}, this camri reads {FORMAT}; make it again")
    return record.from_json(Answer, stored, "")


def load_answer(path: str | Path) -> Answer:
    """Read the answer in a JSON file."""
    try:
        stored = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise InputError(f"{path} is no JSON; give the file that `camri audit --save` wrote") from None
    return answer_from_json(stored, str(path))
