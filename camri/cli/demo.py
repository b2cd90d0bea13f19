"""`camri demo`: a fit of embedded data."""

import time
from pathlib import Path

from camri.cli.fit_view import show

# Counted, not timed: the same figures on every machine of one kind; about a minute on two cores.
NUM_TRIALS = 72
EPOCHS = 12


def run(out: Path) -> None:
    """Fit digits with its weakest class as the important one, and print the result."""
    show(time.monotonic(), "digits", None, out, num_trials=NUM_TRIALS, epochs=EPOCHS, device="cpu")
