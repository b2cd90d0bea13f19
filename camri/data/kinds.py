"""Which data take which option of `load`: one that would have no effect is refused, not ignored."""

from dataclasses import fields

from camri.data.listing import EncodedImages, Listing, Options
from camri.errors import InputError

IMAGES, IMAGE_FILES, GTSRB, TABLES = "images", "image files", "GTSRB", "tables (CSV, TSV, parquet)"
OFFICIAL_FILES = "the official files of CIFAR-10 and MNIST"
TAKEN_BY = {
    "size": IMAGES,
    "skip_bad": IMAGE_FILES,
    "roi": GTSRB,
    "verify": OFFICIAL_FILES,
    "path_column": TABLES,
    "label_column": TABLES,
    "group_column": TABLES,
    "split_column": TABLES,
}
# the first word of a layout -> what it is beside images or features
LAYOUTS = {"table": TABLES, "parquet": TABLES, "gtsrb": GTSRB, "cifar10": OFFICIAL_FILES, "mnist": OFFICIAL_FILES}


def refuse_untaken(where: str, layout: str, listing: Listing, options: Options) -> None:
    """Nothing; an option that was given and that this kind of data does not take is refused by name."""
    inputs = next(iter(listing.parts.values())).inputs
    if isinstance(inputs, EncodedImages):
        content, kinds = "images", {IMAGES, IMAGE_FILES}
    elif inputs.ndim == 4:
        content, kinds = "images", {IMAGES}
    else:
        content, kinds = "features", set()
    kinds.add(LAYOUTS.get(layout.split()[0].strip(","), ""))
    for option in fields(options):
        value, taken_by = getattr(options, option.name), TAKEN_BY[option.name]
        if value != option.default and taken_by not in kinds:
            if isinstance(value, tuple) and value[0] == value[1]:
                value = value[0]  # a size as it is given
            flag = " (--no-verify)" if option.name == "verify" else ""  # the one flag that is called otherwise
            raise InputError(
                f"{option.name}={value!r}{flag} is for {taken_by}, and {where} holds {content} ({layout}); leave it out"
            )
