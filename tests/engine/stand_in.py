"""A GPU's stand-in on the CPU: Triton's kernels run as Python, streams are no streams, a graph is a list of calls."""

import contextlib
import importlib
import itertools
import sys
import types

import torch

import camri.engine

MODULES = ("fused_optimizer", "cuda_replica", "cuda")  # those that import triton, in the order of their imports


class Pointer:
    """A tensor's memory, with offsets added to it as in Triton."""

    def __init__(self, tensor, offset=0):
        self.memory, self.offset = tensor.view(-1), offset
        self.dtype = types.SimpleNamespace(element_ty=tensor.dtype)

    def __add__(self, offset):
        return Pointer(self.memory, self.offset + offset)


class Kernel:
    """`kernel[grid](…)` runs the function's own text, one program after another."""

    def __init__(self, function):
        self.function = function

    def __getitem__(self, grid):
        def launch(*values, **constants):
            pointers = [Pointer(value) if isinstance(value, torch.Tensor) else value for value in values]
            with torch.no_grad():
                for Language.program in itertools.product(*map(range, grid)):
                    self.function(*pointers, **constants)

        return launch


class Language:
    """What the kernel uses of triton.language."""

    constexpr, float32, program = int, torch.float32, (0, 0)
    where, sqrt, arange = torch.where, torch.sqrt, torch.arange

    @staticmethod
    def program_id(axis):
        return Language.program[axis]

    @staticmethod
    def load(pointer, mask=None, other=None):
        if mask is None:
            return pointer.memory[pointer.offset].squeeze()
        found = pointer.memory[pointer.offset.clamp(max=len(pointer.memory) - 1)]
        return torch.where(mask, found, other).to(pointer.memory.dtype)

    @staticmethod
    def store(pointer, value, mask):
        pointer.memory[pointer.offset[mask]] = value[mask]


class Stream:
    def wait_stream(self, other):
        pass

    def wait_event(self, event):
        pass


class Event:
    def __init__(self, blocking=False):
        pass

    def record(self, stream=None):
        pass

    def synchronize(self):
        pass


class Graph:
    """While captured, calls are recorded and do not run; replaying runs them."""

    capturing = None

    def __init__(self):
        self.calls = []

    def replay(self):
        for call in self.calls:
            call()


@contextlib.contextmanager
def capture(graph):
    Graph.capturing = graph
    try:
        yield
    finally:
        Graph.capturing = None


def do_nothing():
    pass


def no_context(*_):
    return contextlib.nullcontext()


def gpu_engine(patch):
    """The modules of the GPU engine made to run on the CPU, while `patch` (a MonkeyPatch) holds."""
    language = types.ModuleType("triton.language")
    vars(language).update({name: getattr(Language, name) for name in vars(Language) if not name.startswith("__")})
    triton = types.ModuleType("triton")
    triton.jit, triton.cdiv, triton.language = Kernel, lambda size, block: -(-size // block), language
    for name in MODULES:  # noted by `patch`, so that no other test meets the stand-ins
        patch.setitem(sys.modules, f"camri.engine.{name}", None)
        patch.setitem(vars(camri.engine), name, None)
        del sys.modules[f"camri.engine.{name}"]
    # Only while they are imported: torch would take it for the real one.
    with patch.context() as importing:
        importing.setitem(sys.modules, "triton", triton)
        importing.setitem(sys.modules, "triton.language", language)
        optimizer, replica, cuda = (importlib.import_module(f"camri.engine.{name}") for name in MODULES)
    for name, value in {"Stream": Stream, "Event": Event, "CUDAGraph": Graph, "graph": capture, "device": no_context,
                        "stream": no_context, "current_stream": Stream, "synchronize": do_nothing}.items():  # fmt: skip
        patch.setattr(torch.cuda, name, value)
    advance = replica.Replica.advance

    def advance_or_note(branch, forward):
        if Graph.capturing is None:
            advance(branch, forward)
        else:
            Graph.capturing.calls.append(lambda: advance(branch, forward))

    patch.setattr(replica.Replica, "advance", advance_or_note)
    return types.SimpleNamespace(optimizer=optimizer, replica=replica, cuda=cuda)
