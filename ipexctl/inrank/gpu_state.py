"""What became of the GPUs of this process's script, for `gpu_code.py` and the modules beside it: which files are of the
project, the kinds of the note, what was asked and refused.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
from typing import Any, Callable, Iterator

from .acted import ActingLever, is_first

VARIABLE = "IPEXCTL_GPU_CODE"
TOLD = "IPEXCTL_GPU_CODE_TOLD"
PLACED = "what {script} places on GPUs is on the CPU"
AUTOCAST = "float16 autocast became bfloat16"
SCALER = "GradScaler is off"
NCCL = "NCCL became gloo"
KINDS = (PLACED, AUTOCAST, SCALER, NCCL)
"""In the order of the note."""
LIBRARIES = tuple(
    {os.path.realpath(path) + os.sep for path in map(sysconfig.get_path, ("stdlib", "platstdlib")) if path}
    | {path + os.sep for path in map(sysconfig.get_path, ("stdlib", "platstdlib")) if path}
)
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep

states: list[GpuCode] = []
"""One, once torch was imported."""
refusals: set[str] = set()
"""Sentences of errors for what has no counterpart on CPUs."""


def refusal(what: str) -> str:
    """Return the sentence of an error for what has no counterpart on CPUs; `gpu_end.py` knows it again."""
    text = f"{what} needs a GPU, and the ranks run on CPUs"
    refusals.add(text)
    return text


@functools.lru_cache(maxsize=None)
def is_project_file(name: str) -> bool:
    """True unless the file is of Python, an installed package, or ipexctl."""
    is_library = name.startswith((*LIBRARIES, OWN, "<frozen")) and "-packages" not in name
    return not (is_library or any(part in name for part in INSTALLED))


def of_project(depth: int = 2) -> bool:
    """True if a file of the project calls the function that asks."""
    return is_project_file(sys._getframe(depth).f_code.co_filename)


class GpuCode:
    """What became of the GPUs of this process's script."""

    def __init__(self, torch: Any, mode: str) -> None:
        self.torch = torch
        self.claims = mode == "assume"
        """True if files of the project are told that there are GPUs."""
        self.lever = ActingLever("gpu_code", f"--gpu-code {mode}")
        self.kinds: list[str] = []
        self.is_placed = False
        """True once the project has placed something on a GPU."""
        self.asked: set[tuple[str, int, str]] = set()
        """File, line and function of each question of the project for a GPU that was answered with no."""
        self.ended = ""
        """Place of a call that starts no processes, for want of GPUs."""
        self.libraries: list[Any] = []
        """Kept, because torch forgets what a library has registered once it is gone."""
        self.cpu = torch.device("cpu")
        self.device_type = type(self.cpu)
        self.index = int(os.environ.get("LOCAL_RANK", "0"))
        self._told, self._told_before = 0, False
        self._moves = 0
        """Depth of the moves of modules by the project, whose parameters are copied."""

    @property
    def devices(self) -> int:
        """Return the number of GPUs that the script is told: as many as the host has ranks."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def is_gpu(self, device: Any) -> bool:
        """True if torch would take the value as a GPU: `cuda…`, such a device, or a number."""
        kind = type(device)
        if kind is str:
            return bool(device.startswith("cuda"))
        if kind is self.device_type:
            return bool(device.type == "cuda")
        return kind is int  # torch takes a number as a GPU

    def on_cpu(self, device: Any) -> Any:
        """Return the CPU in place of a GPU, and note that something was placed there; any other value stays as it
        is."""
        if self.is_gpu(device):
            self.place()
            return self.cpu
        return device

    def place(self) -> None:
        """Note that the project has placed something on a GPU."""
        self.is_placed = True
        self.note(PLACED)

    def note(self, kind: str) -> None:
        """Note what happened to code for GPUs, for the next line that is printed. `kind`: one of `KINDS`."""
        self.lever.has_acted = self.lever.is_in_step = True
        if kind not in self.kinds:
            self.kinds.append(kind)

    def tell(self, *_: Any, **__: Any) -> None:
        """Print the kinds that happened since the last note; called after a step of an optimizer, and at exit."""
        if len(self.kinds) == self._told:
            return
        script = os.path.basename(sys.argv[0] if sys.argv else "") or "the script"
        kinds = "; ".join(sorted(self.kinds[self._told :], key=KINDS.index)).format(script=script)
        self._told = len(self.kinds)
        self.lever.failed = "; ".join(self.kinds).format(script=script)
        if is_first() and (self._told_before or not os.environ.get(TOLD)):
            self._told_before = True
            self.lever.tell(f"{kinds} (--gpu-code off leaves PyTorch's errors)")
            os.environ[TOLD] = "1"  # for children

    @contextlib.contextmanager
    def moving(self, *, by_project: bool) -> Iterator[None]:
        """Let moves in the `with` block be copies, if the project moves a module there."""
        self._moves += by_project
        try:
            yield
        finally:
            self._moves -= by_project

    def copies(self, name: str, tensor: Any = None) -> bool:
        """True if a move that this file asks for is a copy. A parameter is taken for one that is on the GPU already:
        its copy would be no parameter."""
        is_parameter = tensor is not None and tensor.requires_grad and tensor.is_leaf
        return self._moves > 0 or (is_project_file(name) and not is_parameter)


def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of torch, if this version has it, so that torch.jit.script still compiles it."""
    old = getattr(owner, name, None)
    if old is None:
        return
    replace(owner, name, functools.wraps(old)(make(old)))


def replace(owner: Any, name: str, new: Any) -> None:
    """Put a function or class in the place of torch's, so that torch.jit.script still compiles calls of it."""
    old, builtins = getattr(owner, name), sys.modules["torch.jit._builtins"]
    setattr(owner, name, new)
    operator = builtins._find_builtin(old)
    if operator is not None:
        builtins._register_builtin(new, operator)
