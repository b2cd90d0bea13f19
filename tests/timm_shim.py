"""timm where torchvision's wheel does not fit torch: its operators are declared before it is imported."""

import contextlib
import importlib
import importlib.util

import pytest
import torch

_LIBRARIES = []  # a library that is collected takes its operators with it


def declare_operators():
    """Declare what torchvision asks for when it is imported, where it is installed; transformers imports it too."""
    if importlib.util.find_spec("torchvision") is None or _LIBRARIES:
        return
    _LIBRARIES.append(torch.library.Library("torchvision", "DEF"))
    with contextlib.suppress(RuntimeError):  # declared by a torchvision that fits
        for operator in ("nms", "qnms"):
            _LIBRARIES[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def import_timm():
    """timm; the test is skipped where it cannot be imported."""
    declare_operators()
    try:
        return importlib.import_module("timm")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"timm cannot be imported: {error}")
