"""First values of models: drawn from a generator, or read from a file."""

import hashlib
from collections.abc import Callable

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from camri.errors import InputError, closest

CLASSIFIERS = ("head.", "fc.", "classifier.")  # what files of whole models hold beside a trunk


def draw(weight: Tensor, init: Callable[..., Tensor], generator: torch.Generator | None) -> None:
    """Nothing; `weight` is filled, drawn on the generator's own device, so that it is the same on any other."""
    with torch.no_grad():
        if generator is None:
            init(weight)
        else:
            drawn = torch.empty(weight.shape, dtype=torch.float32, device=generator.device)
            weight.copy_(init(drawn, generator=generator))


def start_from(trunk: nn.Module, path: str, digest: str | None) -> None:
    """Nothing; the trunk's values are those of a safetensors file, whose names and shapes must be the trunk's.

    A file of a whole classifier serves too: "trunk." before its names is taken off, and its last layer is left out.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
        found = load(data)
    except OSError as error:
        raise InputError(f"weights {path} cannot be read ({error.strerror}); give a safetensors file") from None
    except (SafetensorError, ValueError) as error:
        raise InputError(f"weights {path} is not a safetensors file ({error})") from None
    if digest is not None and hashlib.sha256(data).hexdigest() != digest:
        raise InputError(f"weights {path} has changed since the training began; put the file back, or begin anew")
    if any(name.startswith("trunk.") for name in found):
        found = {name.removeprefix("trunk."): tensor for name, tensor in found.items() if name.startswith("trunk.")}
    counters = "num_batches_tracked"  # batch norm's; not every file has them
    wanted = {name: tensor for name, tensor in trunk.state_dict().items() if not name.endswith(counters)}
    for name, tensor in wanted.items():
        if name not in found:
            raise InputError(f"weights {path} has no {name!r}, which the model has; {closest(name, found)}")
        if found[name].shape != tensor.shape:
            given, needed = tuple(found[name].shape), tuple(tensor.shape)
            raise InputError(
                f"weights {path}: {name!r} has shape {given}, and the model needs {needed}; give weights of this model"
            )
    for name in found:
        if name not in wanted and not name.endswith(counters) and not name.startswith(CLASSIFIERS):
            raise InputError(f"weights {path} has {name!r}, which the model does not have; {closest(name, wanted)}")
    trunk.load_state_dict({name: found[name] for name in wanted}, strict=False)
