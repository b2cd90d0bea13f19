"""Scripts that measure; none of them is part of the package."""
