"""Quantities in the words that every terminal, page and card has for them."""


def duration(seconds: float) -> str:
    """A duration as people say it; "?" where nobody knows it.

    >>> duration(0.4), duration(58.2), duration(75), duration(7300), duration(400_000)
    ('0.4 s', '58 s', '1 min 15 s', '2 h 02 min', '4.6 days')
    """
    if not seconds < float("inf"):
        return "?"
    if round(seconds, 1) < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours < 72 else f"{seconds / 86400:.1f} days"
