"""What `camri data show` reports about a data set, and its contact sheet."""

from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont

from camri.data.catalog import notes
from camri.data.dataset import DataSet
from camri.data.decode import to_image
from camri.data.rows import Rows, memory_for_images, num_bytes
from camri.errors import InputError

COLUMNS = ("label_column", "image_column", "path_column", "num_feature_columns", "group_column", "unused_columns")
SHEET_CLASSES = 50
SHEET_COLUMNS = 12
TILE_PX = 64
GAP_PX = 6
LABEL_PX = 270
INK, FAINT, PAPER = "#1a1a1a", "#6b6b6b", "#ffffff"


def describe(dataset: DataSet) -> dict[str, Any]:
    """Summarise a data set as JSON: layout, shape, rows per class and split, groups, duplicates, skipped files."""
    facts = dataset.provenance
    counts = [dataset.class_counts(part).tolist() for part in dataset.splits]
    return {
        "name": dataset.name,
        "layout": facts.get("layout"),
        "kind": "images" if dataset.is_image else "features",
        "shape": list(dataset.input_shape),
        "memory": _where(dataset),
        "original_sizes": facts.get("original_sizes"),
        "notes": [note for note in notes(facts) if note != facts.get("skipped_note")],
        "columns": {key: facts[key] for key in COLUMNS if facts.get(key)},
        "verified": facts.get("verified"),
        "fingerprint": dataset.fingerprint,
        "num_classes": dataset.num_classes,
        "rows": {part: len(split) for part, split in dataset.splits.items()},
        "classes": {name: per_split for name, *per_split in zip(dataset.classes, *counts, strict=True)},
        "groups": {
            part: len(split.groups.unique()) for part, split in dataset.splits.items() if split.groups is not None
        },
        "splits": facts.get("splits", []),
        "duplicates": [
            {"splits": pair["splits"], "count": len(pair["rows"]), "rows": pair["rows"][:20]}
            for pair in facts.get("duplicates", [])
        ],
        "copies_in_train": facts.get("copies_in_train", 0),
        "skipped": facts.get("skipped", []),
    }


def _where(dataset: DataSet) -> str:
    """Whether the inputs are in memory or read by the batch, and why."""
    inputs = [split.inputs for split in dataset.splits.values()]
    taken = f"{sum(map(num_bytes, inputs)) / 2**20:,.1f} MiB"
    if not isinstance(inputs[0], Rows):
        return f"resident, {taken}"
    if dataset.resident is None:
        limit = f"half of the free memory ({memory_for_images() / 2**20:,.1f} MiB)"
    else:
        limit = f"resident={dataset.resident / 2**20:,.1f} MiB"
    return f"{inputs[0].store.how}, {taken} being more than {limit}"


def contact_sheet(dataset: DataSet) -> tuple[Image.Image, dict[str, str]]:
    """(sheet, legend): a row of training images per class with its name and counts; the first 50 classes.

    The legend gives the name of each class that is drawn as a number, because the font lacks its letters.
    """
    if not dataset.is_image:
        raise InputError(f"{dataset.name} holds features, not images: no contact sheet can be drawn", argument="sheet")
    train = dataset.splits["train"]
    num_shown, num_more = min(SHEET_CLASSES, dataset.num_classes), max(0, dataset.num_classes - SHEET_CLASSES)
    counts = {part: dataset.class_counts(part).tolist() for part in dataset.splits}
    tile_height, tile_width = _tile_shape(dataset.input_shape[0], dataset.input_shape[1])
    row_px = tile_height + GAP_PX
    width = LABEL_PX + SHEET_COLUMNS * (tile_width + GAP_PX) + GAP_PX
    head, foot = 60, 26 if num_more else 8
    sheet = Image.new("RGB", (width, head + num_shown * row_px + foot), PAPER)
    draw = ImageDraw.Draw(sheet)
    large, normal, small = (ImageFont.load_default(size) for size in (20, 15, 13))
    draw.text((12, 8), dataset.name if _has_glyphs(large, dataset.name) else "data set", INK, font=large)
    rows = " · ".join(f"{part} {len(split):,}" for part, split in dataset.splits.items())
    shape = "x".join(map(str, dataset.input_shape[:2]))
    heading = f"{dataset.num_classes:,} classes · {rows} · {shape} pixels · training images shown"
    draw.text((12, 34), heading, FAINT, font=small)
    legend = {}
    for position, name in enumerate(dataset.classes[:num_shown]):
        top = head + position * row_px
        if position % 2:
            draw.rectangle((0, top - GAP_PX // 2, width, top + row_px - GAP_PX // 2 - 1), "#f4f4f4")
        if not _has_glyphs(normal, name):
            legend[f"class {position}"] = name
            name = f"class {position}"
        draw.text((12, top + tile_height / 2 - 19), _fitted(draw, name, normal), INK, font=normal)
        numbers = " · ".join(f"{part} {counts[part][position]:,}" for part in counts)
        draw.text((12, top + tile_height / 2 + 2), _fitted(draw, numbers, small), FAINT, font=small)
        for column, row in enumerate(_sample(train.labels, position)):
            left = LABEL_PX + column * (tile_width + GAP_PX)
            sheet.paste(_tile(train.inputs[row], tile_height, tile_width), (left, top))
    if num_more:
        draw.text((12, sheet.height - 20), f"… and {num_more:,} more classes", FAINT, font=small)
    return sheet, legend


def _has_glyphs(font: Any, text: str) -> bool:
    missing = bytes(font.getmask("\U0010ffff"))  # no font has this letter: it is drawn as the box for missing ones
    return all(letter == " " or bytes(font.getmask(letter)) != missing for letter in text)


def _sample(labels: torch.Tensor, klass: int) -> list[int]:
    """Some rows of the class, evenly spaced over the data: neighbours often look alike."""
    rows = torch.nonzero(labels == klass).flatten()
    steps = torch.linspace(0, len(rows) - 1, min(SHEET_COLUMNS, len(rows))).round().long()
    return rows[steps].tolist()


def _tile_shape(height: int, width: int) -> tuple[int, int]:
    scale = TILE_PX / max(height, width)
    if scale >= 1:
        scale = round(scale)  # a whole number keeps enlarged pixels square
    return max(1, round(height * scale)), max(1, round(width * scale))


def _tile(pixels: torch.Tensor, height: int, width: int) -> Image.Image:
    image = to_image(pixels.numpy()).convert("RGB")
    # Small images are shown pixel by pixel: smoothing would invent detail.
    enlarged = height >= image.height
    return image.resize((width, height), Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS)


def _fitted(draw: ImageDraw.ImageDraw, text: str, font: Any) -> str:
    """The text, shortened to the width of the label column."""
    while draw.textlength(text, font=font) > LABEL_PX - 24:
        text = text[:-2].rstrip("…") + "…"
    return text
