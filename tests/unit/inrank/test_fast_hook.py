"""The hooks of --autocast and --fused-optimizer, where torch can't do it, and what becomes of a model's outputs. Real
torch: `tests/stack/test_real_fast.py`."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections import OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any

import pytest

import ipexctl
from ipexctl.inrank.fast import to_fp32

PACKAGE = Path(ipexctl.__file__).parent
AUTOCAST, FUSED = {"IPEXCTL_AUTOCAST": "bf16"}, {"IPEXCTL_FUSED_OPTIMIZER": "1"}
OLD = '__version__ = "2.3.0"\nimport torch.optim.adam, torch.optim.sgd'
ADAM = "def adam(params, grads, *, fused=None): print(fused)"
SGD = "def sgd(params): pass"
SCRIPT = "import torch, torch.optim.adam; torch.optim.adam.adam([], [])"


@pytest.mark.parametrize(
    ("torch", "variables", "said"),
    [
        ("", {}, ""),
        ("", AUTOCAST, "ipexctl: --autocast bf16 is off: AttributeError"),
        (OLD, FUSED, "ipexctl: --fused-optimizer is off: torch 2.3.0 has no"),
        (OLD, {**FUSED, "RANK": "1"}, ""),
    ],
)
def test_a_script_runs_as_it_is_where_torch_cannot(
    tmp_path: Path, torch: str, variables: dict[str, str], said: str
) -> None:
    (tmp_path / "torch/optim").mkdir(parents=True)
    no_kernels = "class _C:\n    _dispatch_has_kernel_for_dispatch_key = lambda name, key: False"
    files = {"__init__": f"{torch}\n{no_kernels}", "optim/__init__": "", "optim/adam": ADAM, "optim/sgd": SGD}
    for name, text in files.items():
        (tmp_path / f"torch/{name}.py").write_text(text)
    shim = tmp_path / "hooks"
    shutil.copytree(PACKAGE / "inrank", shim / "ipexctl_inrank")
    for name, there in (("sitecustomize.py", "sitecustomize.py"), ("rank_hooks.py", "ipexctl_hooks.py")):
        shutil.copy(PACKAGE / "node/run/rank" / name, shim / there)
    environ = {"PYTHONPATH": f"{shim}:{tmp_path}", "RANK": "0", **variables}
    argv = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "None\n"
    assert done.stderr.startswith(said)
    assert bool(done.stderr) == bool(said)


class Tensor:
    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def float(self) -> Tensor:
        return Tensor("fp32")


Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass(frozen=True)
class Output:
    logits: Tensor
    count: int = 3


def converted(value: Any) -> Any:
    return to_fp32(Tensor, ("bf16", "fp16"), value)


def test_half_precision_outputs_become_fp32_in_containers_that_keep_their_type() -> None:
    bf16, wide = Tensor("bf16"), Tensor("fp64")
    outputs: OrderedDict[str, Any] = OrderedDict(
        pair=Pair(bf16, [Tensor("fp16"), (wide, 1)]),
        made=Output(bf16),
        by_name=defaultdict[str, Any](list, {"a": bf16}),
        text="t",
    )
    found = converted(outputs)
    assert type(found) is OrderedDict
    assert type(found["pair"]) is Pair
    assert (found["pair"].left.dtype, found["pair"].right[0].dtype) == ("fp32", "fp32")
    assert found["pair"].right[1] == (wide, 1)
    assert (found["made"].logits.dtype, found["made"].count) == ("fp32", 3)
    assert (found["by_name"]["a"].dtype, found["by_name"]["new"]) == ("fp32", [])
    assert found["text"] == "t"
    assert outputs["pair"].left is outputs["made"].logits is bf16, "the model's own objects stay"


@pytest.mark.parametrize(
    "value", [None, 3, "text", (), [Tensor("fp32")], {"a": Tensor("int64")}, Output(Tensor("fp32"))]
)
def test_outputs_without_half_precision_are_the_same_objects(value: Any) -> None:
    assert converted(value) is value
