"""scikit-learn's 1,797 handwritten digits, 8x8, there without a download."""

import numpy as np

from camri.data.listing import Found, Listing, Part


def find() -> Found:
    """The digits; they come without a test part, so 539 rows (30 %) are held out by a seeded split."""
    return Found("digits", (), lambda scratch: _read())


def _read() -> Listing:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., None]  # 0..16 -> 0..255
    labels = digits.target.astype(np.int64)
    return Listing(tuple(map(str, range(10))), {"train": Part(pixels, labels)}, test_rows=539)
