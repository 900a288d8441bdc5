"""The hook of --fp32-math, with stand-ins for torch and IPEX of several versions."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ipexctl

HOOKS = Path(ipexctl.__file__).parent / "node/run/rank"
TORCH = """\
from types import SimpleNamespace as Object
import sys
__version__ = {version!r}
matmul, backends = "highest", Object(mkldnn=Object(conv=Object(fp32_precision="none"), rnn=Object()))
def set_float32_matmul_precision(value):
    global matmul
    matmul = value
"""
IPEX = """\
import torch
class FP32MathMode:
    BF32 = "bf32"
def set_fp32_math_mode(mode, device): torch.ipex = mode, device
"""
SCRIPT = """\
import torch
try:
    import intel_extension_for_pytorch
except ImportError:
    pass
def show():
    print(torch.matmul, torch.backends.mkldnn.conv.fp32_precision, getattr(torch, "ipex", None), flush=True)
show()
torch.set_float32_matmul_precision("high")
show()
import subprocess, sys
subprocess.run([sys.executable, "-c", "import torch; print(torch.matmul)"])
"""
ON, BF32 = "ipexctl: --fp32-math bf16 is on\n", "('bf32', 'cpu')"
OFF = "ipexctl: --fp32-math bf16 is off: "


@pytest.mark.parametrize(
    ("version", "ipex", "rank", "printed", "said"),
    [
        ("2.13.0+cpu", "", "0", "medium bf16 None\nhigh bf16 None\nmedium\n", ON),
        ("2.13.0+cpu", "", "1", "medium bf16 None\nhigh bf16 None\nmedium\n", ""),
        ("2.9.0a0", "", "0", "medium bf16 None\nhigh bf16 None\nmedium\n", ON),
        ("2.8.0", IPEX, "0", f"medium none {BF32}\nhigh none {BF32}\nmedium\n", ON),
        ("2.3.1", "", "0", "medium none None\nhigh none None\nmedium\n", ON),
        ("2.2.2", "", "1", "highest none None\nhigh none None\nhighest\n", ""),
        ("2.2.2", IPEX, "0", f"highest none {BF32}\nhigh none {BF32}\nhighest\n", f"{OFF}torch 2.2.2 supports it…{ON}"),
        ("2.2.2", "", "0", "highest none None\nhigh none None\nhighest\n", f"{OFF}torch 2.2.2 supports it…"),
        ("git", "", "0", "highest none None\nhigh none None\nhighest\n", f"{OFF}ValueError…"),
        ("2.8.0", "import torch", "1", "medium none None\nhigh none None\nmedium\n", ""),
    ],
)
def test_torch_and_ipex_are_set_at_their_import_and_the_script_wins(
    tmp_path: Path, version: str, ipex: str, rank: str, printed: str, said: str
) -> None:
    done = run(tmp_path, version, ipex, IPEXCTL_FP32_MATH="bf16", RANK=rank)
    assert done.stdout == printed
    assert all(part in done.stderr for part in said.split("…")), done.stderr
    assert bool(done.stderr) == bool(said)
    assert done.stderr.count(ON) == said.count(ON)


def test_without_the_option_nothing_is_set(tmp_path: Path) -> None:
    done = run(tmp_path, "2.13.0", IPEX, RANK="0")
    assert (done.stdout, done.stderr) == ("highest none None\nhigh none None\nhighest\n", "")


def run(directory: Path, version: str, ipex: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (directory / "torch.py").write_text(TORCH.format(version=version))
    if ipex:
        (directory / "intel_extension_for_pytorch.py").write_text(ipex)
    shim = directory / "hooks"
    shim.mkdir()
    for name, there in (("sitecustomize.py", "sitecustomize.py"), ("rank_hooks.py", "ipexctl_hooks.py")):
        shutil.copy(HOOKS / name, shim / there)
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PYTHONPATH": f"{shim}:{directory}", **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
