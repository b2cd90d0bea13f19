"""Studies: what to train (`spec`, `recipes`), how it runs (`runner`), where outcomes are stored (`store`).

They need torch, numpy, scipy and safetensors only; reading a store needs no torch either.
"""

SMALL = "small."  # how the names of small studies begin: whatever is made of their runs says so
