"""Modules that doctests leave out where what they need is not installed."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("triton") else ["camri/engine/cuda.py", "camri/engine/flat.py"]
