"""What `camri data show` tells about a data set, and its contact sheet."""

from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont

from camri.data.catalog import notes
from camri.data.dataset import DataSet
from camri.errors import InputError

COLUMNS = ("label_column", "image_column", "path_column", "num_feature_columns", "group_column", "unused_columns")
SHEET_CLASSES = 50
SHEET_COLUMNS = 12
TILE_PX = 64
GAP_PX = 6
LABEL_PX = 270
INK, FAINT, PAPER = "#1a1a1a", "#6b6b6b", "#ffffff"


def describe(dataset: DataSet) -> dict[str, Any]:
    """A JSON-able summary: layout, shape, rows per class and split, groups, duplicates, what was left out."""
    told = dataset.provenance
    return {
        "name": dataset.name,
        "layout": told.get("layout"),
        "kind": "images" if dataset.is_image else "features",
        "shape": list(dataset.input_shape),
        "original_sizes": told.get("original_sizes"),
        "notes": [note for note in notes(told) if note != told.get("skipped_note")],
        "columns": {key: told[key] for key in COLUMNS if told.get(key)},
        "verified": told.get("verified"),
        "fingerprint": dataset.fingerprint,
        "num_classes": dataset.num_classes,
        "rows": {part: len(split) for part, split in dataset.splits.items()},
        "classes": {
            name: counts
            for name, *counts in zip(
                dataset.classes, *(dataset.class_counts(part).tolist() for part in dataset.splits), strict=True
            )
        },
        "groups": {
            part: len(split.groups.unique()) for part, split in dataset.splits.items() if split.groups is not None
        },
        "splits": told.get("splits", []),
        "duplicates": [
            {"splits": found["splits"], "count": len(found["rows"]), "rows": found["rows"][:20]}
            for found in told.get("duplicates", [])
        ],
        "copies_in_train": told.get("copies_in_train", 0),
        "skipped": told.get("skipped", []),
    }


def contact_sheet(dataset: DataSet) -> Image.Image:
    """One row of training images per class, with its name and counts; the first 50 classes."""
    if not dataset.is_image:
        raise InputError(f"{dataset.name} holds features, not images; there is no contact sheet to draw")
    train = dataset.splits["train"]
    shown = dataset.classes[:SHEET_CLASSES]
    counts = {part: dataset.class_counts(part).tolist() for part in dataset.splits}
    tile_height, tile_width = _tile_shape(dataset.input_shape[0], dataset.input_shape[1])
    row_px = tile_height + GAP_PX
    width = LABEL_PX + SHEET_COLUMNS * (tile_width + GAP_PX) + GAP_PX
    head, foot = 60, 26 if len(shown) < dataset.num_classes else 8
    sheet = Image.new("RGB", (width, head + len(shown) * row_px + foot), PAPER)
    draw = ImageDraw.Draw(sheet)
    large, normal, small = (ImageFont.load_default(size) for size in (20, 15, 13))
    draw.text((12, 8), dataset.name, INK, font=large)
    rows = " · ".join(f"{part} {len(split):,}" for part, split in dataset.splits.items())
    shape = "x".join(map(str, dataset.input_shape[:2]))
    draw.text(
        (12, 34),
        f"{dataset.num_classes:,} classes · {rows} · {shape} pixels · training images shown",
        FAINT,
        font=small,
    )
    for position, name in enumerate(shown):
        top = head + position * row_px
        if position % 2:
            draw.rectangle((0, top - GAP_PX // 2, width, top + row_px - GAP_PX // 2 - 1), "#f4f4f4")
        draw.text((12, top + tile_height / 2 - 19), _fitted(draw, name, normal), INK, font=normal)
        numbers = " · ".join(f"{part} {counts[part][position]:,}" for part in counts)
        draw.text((12, top + tile_height / 2 + 2), _fitted(draw, numbers, small), FAINT, font=small)
        for column, row in enumerate(_sample(train.labels, position)):
            left = LABEL_PX + column * (tile_width + GAP_PX)
            sheet.paste(_tile(train.inputs[row], tile_height, tile_width), (left, top))
    if len(shown) < dataset.num_classes:
        draw.text(
            (12, sheet.height - 20), f"… and {dataset.num_classes - len(shown):,} more classes", FAINT, font=small
        )
    return sheet


def _sample(labels: torch.Tensor, klass: int) -> list[int]:
    """Rows of the class, evenly over the data, so that a run of look-alikes does not fill the row."""
    rows = torch.nonzero(labels == klass).flatten()
    steps = torch.linspace(0, len(rows) - 1, min(SHEET_COLUMNS, len(rows))).round().long()
    return rows[steps].tolist()


def _tile_shape(height: int, width: int) -> tuple[int, int]:
    scale = TILE_PX / max(height, width)
    if scale >= 1:
        scale = round(scale)  # whole pixels stay square and alike
    return max(1, round(height * scale)), max(1, round(width * scale))


def _tile(pixels: torch.Tensor, height: int, width: int) -> Image.Image:
    array = pixels.numpy()
    image = Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array).convert("RGB")
    # Small images are shown pixel by pixel: smoothing would invent detail.
    enlarged = height >= image.height
    return image.resize((width, height), Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS)


def _fitted(draw: ImageDraw.ImageDraw, text: str, font: Any) -> str:
    """The text, shortened to the label column."""
    while draw.textlength(text, font=font) > LABEL_PX - 24:
        text = text[:-2].rstrip("…") + "…"
    return text
