"""What a fit has decided so far, in one JSON file: the same command goes on with the same decisions."""

import json
from pathlib import Path
from typing import Any

from camri.errors import InputError
from camri.files import replacing
from camri.study.run_folder import refuse_other_files

JOURNAL_FILE = "fit.json"
BUDGET = "budget in seconds"
TRAININGS = "trainings"  # the folder of the runs that compare trainings; a killed call may have left it alone


class Journal:
    """A fit's decisions by name, on the disk as soon as they are made."""

    def __init__(self, folder: Path, values: dict[str, Any]):
        self.path = folder / JOURNAL_FILE
        self.values = values

    @staticmethod
    def open(folder: Path, request: dict[str, Any]) -> "Journal":
        """The folder's journal; a folder of another fit, or of something else, is refused by what differs."""
        path = folder / JOURNAL_FILE
        if not path.exists():
            refuse_other_files(folder, JOURNAL_FILE, "fit", {TRAININGS})
            return Journal(folder, {"request": request, "spent_s": 0.0})
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            before = values["request"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} cannot be read ({error}); choose another folder") from None
        asked = json.loads(json.dumps(request))
        if is_longer(before, asked):  # then it goes on with more time
            values["request"], values["finished"] = asked, False
            before = asked
        if differ := [name for name in asked if before.get(name) != asked[name]]:
            name = differ[0]
            if name == "data":  # hashes tell nobody anything
                raise InputError(
                    f"{folder} holds a fit of other data, or of these before they changed; bring them back as they "
                    "were, or choose another folder"
                )
            raise InputError(
                f"{folder} holds a fit of another request ({name} {_words(before.get(name))}, and not "
                f"{_words(asked[name])}); choose another folder"
            )
        return Journal(folder, values)

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def set(self, **values: Any) -> None:
        """Nothing; the values are on the disk, whole or not at all."""
        self.values.update(values)
        with replacing(self.path, "; choose another folder") as part:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(self.values, indent=1) + "\n", encoding="utf-8")


def is_longer(before: dict[str, Any], asked: dict[str, Any]) -> bool:
    """Whether a request is another one only in that it has more time.

    >>> is_longer({"seed": 0, BUDGET: 90.0}, {"seed": 0, BUDGET: 180.0})
    True
    >>> is_longer({"seed": 0, BUDGET: 90.0}, {"seed": 0, BUDGET: 60.0})
    False
    """
    if before.get(BUDGET) is None or asked.get(BUDGET) is None or asked[BUDGET] <= before[BUDGET]:
        return False
    return {**before, BUDGET: asked[BUDGET]} == asked


def _words(value: Any) -> str:
    """A part of a request; important classes by their names, with a strength that is not 1.

    >>> _words([["stop", 1.0], ["yield", 0.5]]), _words(None), _words(12)
    ("'stop' and 'yield':0.5", 'none', '12')
    """
    if isinstance(value, list):
        return " and ".join(f"{name!r}{'' if strength == 1 else f':{strength:g}'}" for name, strength in value)
    return "none" if value is None else repr(value)
