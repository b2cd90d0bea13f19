"""Studies: what to train (`spec`, `recipes`), how it runs (`runner`), where outcomes are stored (`store`).

They need torch, numpy, scipy and safetensors only; reading a store needs no torch either.
"""
