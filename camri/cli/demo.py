"""`camri demo`: the main job on embedded data."""

from pathlib import Path

from camri.cli.fit_view import show

# By number and not by time: the same figures on every machine of one kind; about a minute on two cores.
NUM_TRIALS = 72
EPOCHS = 12


def run(out: Path) -> None:
    """Nothing; fits digits, its weakest class made important, and prints what came of it."""
    show("digits", None, out, num_trials=NUM_TRIALS, epochs=EPOCHS, device="cpu")
