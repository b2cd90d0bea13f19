"""From trials to a chosen setting: the paper's rule, which looks at the test set, and the honest one, which does not.

The honest way has two steps that cannot be mixed up: `choose` is given validation scores and nothing else; `judge`
takes its finished choice and opens the test scores of the chosen setting and of the controls, of no other.
"""

from camri.select.choice import Choice, Floor, Pick, Rule, choose
from camri.select.judgement import Arm, Gain, Judgement, judge
from camri.select.paper import OPTIMISTIC, Measured, PaperChoice, choose_as_paper, mark_best
from camri.select.trials import Candidate, Trial, Validation

__all__ = [
    "OPTIMISTIC",
    "Arm",
    "Candidate",
    "Choice",
    "Floor",
    "Gain",
    "Judgement",
    "Measured",
    "PaperChoice",
    "Pick",
    "Rule",
    "Trial",
    "Validation",
    "choose",
    "choose_as_paper",
    "judge",
    "mark_best",
]
