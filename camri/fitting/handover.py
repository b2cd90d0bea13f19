"""The end of a fit: writes the model with its card, the answer, the examples and the page; decides nothing."""

import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from camri.decision.answer import ANSWER_FILE, Answer
from camri.decision.goals import MostRecall
from camri.decision.scores import Array
from camri.engine import Training
from camri.export import Model, Trained, load, save
from camri.fitting.finals import Arms, Finals, Picked, choose_arms, make_answer, pick
from camri.fitting.judge import Held, rules_of
from camri.fitting.request import Request
from camri.fitting.saved import MODEL, WEIGHTS, score, take_model, write_examples
from camri.fitting.trainer import TrainingRun, statuses_of
from camri.methods import Setting
from camri.report.fit_card import write_card
from camri.study import run_folder
from camri.study.run_folder import facts_of
from camri.study.store import Store

PAGE = "report.html"  # in the folder of a fit
PAGE_NEEDS = ("altair", "vl_convert", "jinja2")


@dataclass(frozen=True, eq=False)
class Fitted:
    """The result of a fit: its answer, and the setting and training of the model that is handed over."""

    answer: Answer
    setting: Setting
    training: Training
    out: Path

    @property
    def important(self) -> tuple[str, ...]:
        return self.answer.source.names

    @property
    def finished(self) -> bool:
        """False if it was stopped before all seeds had ended."""
        return self.answer.made is not None and self.answer.made.finished

    @property
    def model_path(self) -> Path:
        return self.out / MODEL

    @property
    def page_path(self) -> Path | None:
        """The report; None if it could not be written because altair or jinja2 is missing."""
        path = self.out / PAGE
        return path if path.exists() else None

    def load(self) -> Model:
        """Load the model, ready to predict."""
        return load(self.model_path)

    def __str__(self) -> str:
        return str(self.answer)


def hand_over(request: Request, run: TrainingRun, finals: Finals, stores: Sequence[Path]) -> Fitted:
    """Answer from the finals; write the model, its card, the answer and the examples."""
    arms = choose_arms(request, run, finals)
    picked = pick(arms)
    trained, scored, logits = _model_of(request, arms, picked, finals.important)
    answer = make_answer(request, run, finals, arms, picked, scored, [*statuses_of(stores).values()])
    fitted = Fitted(answer, arms.setting, arms.training, request.out)
    save(trained, fitted.model_path, card=write_card(answer, request.data, arms.training, fitted.model_path))
    write_examples(request, scored, logits, rules_of([picked.point])[0])
    answer.save(request.out / ANSWER_FILE)
    _note(request, run, finals, answer)
    if finals.is_finished:
        shutil.rmtree(request.out / WEIGHTS, ignore_errors=True)
    return fitted


def _model_of(
    request: Request, arms: Arms, picked: Picked, important: Sequence[int]
) -> tuple[Trained, Held, dict[str, Array]]:
    """The picked model as it is saved, its scores, and its logits by split."""
    (rule,) = rules_of([picked.point])
    if arms.grown is not None:
        trained = Trained.of(arms.grown, request.data, important, rule, request.inputs.standardise)
        return trained, *score(request, trained)
    trained, bare = take_model(request, arms.training, important, arms.setting, picked.model.seed, rule)
    return trained, *score(request, bare, picked.model.seed)


def _note(request: Request, run: TrainingRun, finals: Finals, answer: Answer) -> None:
    """Note the answer in the run's store, for its page, its results and its progress."""
    assert answer.made is not None
    asked = run.study(finals.points, finals.seeds)
    drop = request.goal.max_accuracy_drop if isinstance(request.goal, MostRecall) else 0.0
    notes = {
        "command": answer.made.command,
        "num_trials": len(statuses_of([request.out]) if finals.is_finished else asked.trials(asked.placeholders())),
        "answer": answer.to_json(),
        "rule": {"max_accuracy_drop": drop, "prior_rows": request.prior_rows},
    }
    with run_folder.hold(request.out), Store.open(request.out, facts_of(asked, request.data)) as store:
        for name, value in notes.items():
            store.write_note(name, value)


def can_draw() -> bool:
    """Whether the page can be made here; if not, `camri report` makes it from the store on any machine."""
    return all(importlib.util.find_spec(name) is not None for name in PAGE_NEEDS)


def write_page(folder: Path) -> None:
    from camri.report.page import write_page as write

    write(folder, folder / PAGE)
