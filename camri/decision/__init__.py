"""The core: which decision meets a goal, and is it better than what there is?

    held-out scores -> tune -> compare -> conclude -> Answer

numpy and scipy alone: no torch, no pydantic; the estimator needs scikit-learn. `audit` and `ImportantClassifier` are
the doors for users; what a fit, a study or a report asks of the core is named here.
"""

from typing import TYPE_CHECKING, Any

from camri.decision.answer import (
    Answer,
    Caution,
    Effort,
    HandedOver,
    Length,
    Made,
    Point,
    Source,
    answer_from_json,
    load_answer,
)
from camri.decision.audit import audit, judge, make_goal
from camri.decision.calibrate import Calibration, Probabilities
from camri.decision.compare import (
    SEEDS_FOR_INTERVALS,
    Arm,
    Change,
    ClassResult,
    Comparison,
    Evidence,
    Judged,
    Judging,
    Share,
    compare,
)
from camri.decision.counts import Reliability, accuracy, confusion, precision, recall, reliability
from camri.decision.curve import SLACK, Curve, short_between, trace
from camri.decision.goals import (
    CONFIDENCE,
    AtLeast,
    Costs,
    Goal,
    LeastCost,
    MostRecall,
    Within,
    goal_from_json,
    goal_to_json,
    parse_goal,
    read_costs,
)
from camri.decision.guarantee import Guarantee
from camri.decision.read import Rows, read
from camri.decision.rules import (
    RULES,
    AnyRule,
    DecisionRule,
    LowestCost,
    Shift,
    Threshold,
    argmax_of,
    is_argmax,
    rule_from_json,
)
from camri.decision.scores import REST, Array, Decision, Scores, condense, divide, exact, pool
from camri.decision.stats import (
    FALL,
    FEWEST_GROUPS,
    FEWEST_ROWS,
    Difference,
    Estimate,
    design_effect,
    holm,
    share_of,
    summarise,
    wilson,
)
from camri.decision.tune import PRIOR_ROWS, OperatingPoint, Present, Tuner, tune
from camri.decision.verdict import SEEDS_FOR_PRAISE, SMALL_GAIN, Context, Verdict, conclude
from camri.decision.where import Where, make_where

if TYPE_CHECKING:
    from camri.decision.estimator import DecisionDisplay, ImportantClassifier, find_important

_NEED_SKLEARN = ("DecisionDisplay", "ImportantClassifier", "find_important")  # its import takes half a second

__all__ = [
    "CONFIDENCE", "FALL", "FEWEST_GROUPS", "FEWEST_ROWS", "PRIOR_ROWS", "REST", "RULES", "SEEDS_FOR_INTERVALS",
    "SEEDS_FOR_PRAISE", "SLACK", "SMALL_GAIN", "Answer", "AnyRule", "Arm", "Array", "AtLeast", "Calibration",
    "Caution", "Change", "ClassResult", "Comparison", "Context", "Costs", "Curve", "Decision", "DecisionDisplay",
    "DecisionRule", "Difference", "Effort", "Estimate", "Evidence", "Goal", "Guarantee", "HandedOver",
    "ImportantClassifier", "Judged", "Judging", "LeastCost", "Length", "LowestCost", "Made", "MostRecall",
    "OperatingPoint", "Point", "Present", "Probabilities", "Reliability", "Rows", "Scores", "Share", "Shift",
    "Source", "Threshold", "Tuner", "Verdict", "Where", "Within", "accuracy", "answer_from_json", "argmax_of",
    "audit", "compare", "conclude", "condense", "confusion", "design_effect", "divide", "exact", "find_important",
    "goal_from_json", "goal_to_json", "holm", "is_argmax", "judge", "load_answer", "make_goal", "make_where",
    "parse_goal", "pool", "precision", "read", "read_costs", "recall", "reliability", "rule_from_json", "share_of",
    "short_between", "summarise", "trace", "tune", "wilson",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _NEED_SKLEARN:
        from camri.decision import estimator

        return getattr(estimator, name)
    raise AttributeError(f"module 'camri.decision' has no attribute {name!r}")
