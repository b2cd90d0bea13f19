"""What makes the documentation; not installed with the package."""
