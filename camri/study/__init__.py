"""Studies: what to train (`spec`, `recipes`), how it runs (`runner`), where outcomes lie (`store`).

Nothing in here needs more than torch, numpy, scipy, safetensors and the standard library; reading a store needs no
torch either.
"""
