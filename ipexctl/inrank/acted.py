"""What the options that change a training have done in this process, for the last lines of the run."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

COPY = "IPEXCTL_COPY"
"""Number of a copy of --backend none, which has no RANK."""
SHARED = "allreduce"


def is_first() -> bool:
    """True in rank 0, and in the first copy of --backend none."""
    return os.environ.get("RANK", os.environ.get(COPY)) == "0"


class ActingLever:
    """An option that acts at some steps of some scripts. Prints each text once, in one process of rank 0, or of the
    first copy: the first that has something to say."""

    def __init__(self, name: str, option: str, variable: str = "") -> None:
        self.name, self.option = name, option
        self.has_acted = False
        self.is_in_step = False
        """True once it has acted since the last step."""
        self.steps = 0
        self.detail = ""
        """What is said beside that it is on."""
        self.failed = ""
        """What failed while it acted."""
        self._reason = ""
        self._variable = variable
        self._process = 0 if is_first() and os.environ.get(variable) != "told" else -1
        self._texts: set[str] = set()
        acting_levers[name] = self

    def act(self) -> None:
        """Note that the option acts in this step. The first time, say that it is on."""
        if not self.has_acted:
            self.has_acted = True
            self.tell(f"{self.option} is on{self.detail}")
            if self._variable and self._process > 0:
                os.environ[self._variable] = "told"  # for children
        self.is_in_step = True

    def leave(self, reason: str) -> None:
        """Note why the option did not act; the first reason stays."""
        self._reason = self._reason or reason

    def tell(self, text: str) -> None:
        """Print a text to stderr, once, and only in the process that speaks for the run."""
        if self._process in (0, os.getpid()) and text not in self._texts:
            self._process = os.getpid()
            self._texts.add(text)
            print(f"ipexctl: {text}", file=sys.stderr, flush=True)  # noqa: T201

    def after_step(self) -> None:
        """Count the step if the option has acted since the last one."""
        self.steps += self.is_in_step
        self.is_in_step = False

    def note(self, otherwise: str) -> dict[str, Any]:
        """Return what the rank's document says of the option. `otherwise`: why it did not act, if no reason was
        noted."""
        reason = self.failed if self.has_acted else self._reason or otherwise
        return {"name": self.name, "acted": self.has_acted, "steps": self.steps, "reason": reason[:200]}


acting_levers: dict[str, ActingLever] = {}
"""Name → what it did here."""


@functools.lru_cache(maxsize=None)
def adding_levers() -> tuple[ActingLever, ...]:
    """Return the options about sums of ranks that were asked for; empty if none was."""
    wire = os.environ.get("IPEXCTL_WIRE", "")
    is_asked = os.environ.get("IPEXCTL_ALLREDUCE") == "shared"
    shared = (ActingLever(SHARED, "--allreduce shared"),) if is_asked else ()
    return (*shared, ActingLever("wire", f"--wire {wire}")) if wire else shared


def is_rounding(torch: Any) -> bool:
    """True if torch or IPEX is set to round the inputs of fp32 products."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    # Before torch 2.9, mkldnn has no separate setting.
    precision = torch.get_float32_matmul_precision() if matmul is None else matmul.fp32_precision
    ipex = sys.modules.get("intel_extension_for_pytorch")
    mode = getattr(ipex, "get_fp32_math_mode", lambda **_: None)(device="cpu")
    return precision in ("medium", "bf16", "tf32") or getattr(mode, "name", "") == "BF32"
