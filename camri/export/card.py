"""The card of a model whose decision rule was set by hand: its rule and facts first, then the card it had before."""

import re

from camri.export.folder import CROPPED
from camri.export.model import Model
from camri.text import markdown

BEFORE = """## Before this rule

The card of the same weights with another decision. Neither that decision nor its figures hold for the model here.
"""
FENCED = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def card_with_rule(model: Model, old: str) -> str:
    """The card of a model with a rule set by hand; `old` is the card before, which may be such a card or empty."""
    trained = model.trained
    assert trained.rule is not None
    many = "images" if trained.is_image else "rows"
    shape = "x".join(map(str, trained.input_shape))
    card = f"""# A classifier whose decision was set by hand

## Decision rule

Set by hand: {trained.rule.describe(model.classes)}.

No figures are known of this rule: measure on labelled {many} that the model was not trained on.

## Model

- method: {trained.setting}
- model: {trained.training.model}, {trained.training.epochs} epochs, {sum(trained.class_counts):,} {many}
- input: {shape} {"image, uint8" if trained.is_image else "features, float32"}
- classes: {", ".join(map(markdown, model.classes))}
"""
    first = _first_card(old)
    return f"{card}\n{BEFORE}\n{first}\n" if first else card


def _first_card(old: str) -> str:
    """The card of the model before any rule was set by hand, its headings two levels down."""
    whole = old.replace(CROPPED, "")  # `save` adds it again
    if BEFORE in whole:
        return whole.partition(BEFORE)[2].strip()
    parts = FENCED.split(whole.strip())
    return "".join(part if place % 2 else re.sub("^#", "###", part, flags=re.M) for place, part in enumerate(parts))
