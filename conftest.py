"""Modules that doctests leave out where what they need is not installed."""

import importlib.util

NEED_TRITON = [f"camri/engine/{name}.py" for name in ("cuda", "cuda_replica", "fused_optimizer", "stack")]
NEED_TRITON += ["camri/engine/kernels/convolution.py", "camri/engine/kernels/layers.py"]
collect_ignore = [] if importlib.util.find_spec("triton") else NEED_TRITON
