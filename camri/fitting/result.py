"""What a fit returns."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from camri.engine import Training
from camri.fit_record import FitRecord, compose
from camri.methods import Setting

if TYPE_CHECKING:
    from camri.export import Model

MODEL, PAGE = "model", "report.html"  # in the folder of a fit


@dataclass(frozen=True, eq=False)
class Fitted:
    """The result of a fit: its record, and the setting and training of the model that is handed over."""

    record: FitRecord
    setting: Setting
    training: Training
    out: Path

    @property
    def important(self) -> tuple[str, ...]:
        return self.record.names

    @property
    def finished(self) -> bool:
        """False if it was stopped before all seeds had ended."""
        return self.record.finished

    @property
    def model_path(self) -> Path:
        return self.out / MODEL

    @property
    def page_path(self) -> Path | None:
        """The report; None if it could not be written because altair or jinja2 is missing."""
        path = self.out / PAGE
        return path if path.exists() else None

    @property
    def answer(self) -> str:
        """The result in sentences, one or two a line."""
        return "\n".join(compose(self.record))

    def load(self) -> "Model":
        """Load the model, ready to predict."""
        from camri.export import load

        return load(self.model_path)

    def __str__(self) -> str:
        return self.answer
