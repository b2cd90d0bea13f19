"""Triton kernels for several models in one launch, which `camri.engine.stack` puts together."""
