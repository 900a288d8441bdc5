"""The hook that imports the package, with a stand-in for torch: its DDP, and the package beside the hook."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ipexctl

RUN = Path(ipexctl.__file__).parent / "node/run/rank"
DDP = """\
class DistributedDataParallel:
    "A model."
    def __init__(self, module, scale=1):
        "Wrap it."
        self.module = module * scale
"""
SCRIPT = """\
import sys
assert not any("ipexctl" in name for name in sys.modules), sorted(sys.modules)
from torch.nn.parallel.distributed import DistributedDataParallel as Model
assert Model.__init__.__doc__ == "Wrap it." and Model.__module__ == "torch.nn.parallel.distributed"
assert not any("ipexctl" in name for name in sys.modules), sorted(sys.modules)
print("modules", Model(2).module, Model(3, scale=2).module)
print("path", [entry for entry in sys.path if "hooks" in entry])
"""


@pytest.fixture
def shim(tmp_path: Path) -> Path:
    folder = tmp_path / "torch/nn/parallel"
    folder.mkdir(parents=True)
    for package in (folder, *folder.parents[:2]):
        (package / "__init__.py").touch()
    (folder / "distributed.py").write_text(DDP)
    shim = tmp_path / "hooks"
    shim.mkdir()
    shutil.copy(RUN / "sitecustomize.py", shim)
    shutil.copy(RUN / "rank_hooks.py", shim / "ipexctl_hooks.py")
    (shim / "ipexctl_inrank").mkdir()
    (shim / "ipexctl_inrank/__init__.py").touch()
    return shim


def run(shim: Path, attach: str, **variables: str) -> tuple[str, str]:
    (shim / "ipexctl_inrank/ddp.py").write_text(attach)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PYTHONPATH": f"{shim}:{shim.parent}", "RANK": "0", **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout, done.stderr


ATTACH = "def attach(model): print('attached', model.module)\n"
PLAIN = "modules 2 6\npath []\n"


def test_each_new_model_is_attached_once_it_is_made(shim: Path) -> None:
    assert run(shim, ATTACH, IPEXCTL_ALLREDUCE="shared") == ("attached 2\nattached 6\n" + PLAIN, "")


@pytest.mark.parametrize("variables", [{}, {"IPEXCTL_ALLREDUCE": "backend"}])
def test_without_the_variable_nothing_is_imported(shim: Path, variables: dict[str, str]) -> None:
    assert run(shim, "raise SystemExit(9)", **variables) == (PLAIN, "")


def test_a_package_that_fails_leaves_the_script_alone_and_rank_0_says_so_once(shim: Path) -> None:
    said = "ipexctl: --allreduce shared is off: ImportError: no torch like this\n"
    broken = "raise ImportError('no torch like this')"
    assert run(shim, broken, IPEXCTL_ALLREDUCE="shared") == (PLAIN, said)
    assert run(shim, broken, IPEXCTL_ALLREDUCE="shared", RANK="1") == (PLAIN, "")


def test_a_way_between_hosts_is_taken_and_its_failure_named(shim: Path) -> None:
    assert run(shim, ATTACH, IPEXCTL_WIRE="bf16") == ("attached 2\nattached 6\n" + PLAIN, "")
    said = "ipexctl: --wire bf16 is off: ImportError: no torch like this\n"
    assert run(shim, "raise ImportError('no torch like this')", IPEXCTL_WIRE="bf16") == (PLAIN, said)


def test_the_meter_notes_each_model_also_without_the_hook(shim: Path) -> None:
    (shim / "ipexctl_inrank/meter.py").write_text(
        "class Meter:\n    def on_model(self, model): print('measured', model.module)\ndef meter(): return Meter()\n"
    )
    measured = "measured 2\nmeasured 6\n" + PLAIN
    assert run(shim, "raise SystemExit(9)", IPEXCTL_METER="/proc/1/fd/9") == (measured, "")
    both = "attached 2\nmeasured 2\nattached 6\nmeasured 6\n" + PLAIN
    assert run(shim, ATTACH, IPEXCTL_METER="/proc/1/fd/9", IPEXCTL_ALLREDUCE="auto") == (both, "")


METERED = {
    "torch/optim/optimizer.py": "watch_optimizers torch.optim.optimizer",
    "torch/utils/data/dataloader.py": "watch_loaders torch.utils.data.dataloader",
}
METER = """\
def __getattr__(name):
    return lambda module: print(name, module.__name__, module.VALUE)
"""


@pytest.mark.parametrize("meter", ["", "/proc/1/fd/9"])
def test_meter_watches_modules_once_they_are_run(shim: Path, meter: str) -> None:
    for name in METERED:
        path = shim.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("VALUE = 5\n")
    (shim / "ipexctl_inrank/meter.py").write_text(METER)
    script = "import torch.utils.data.dataloader, torch.optim.optimizer, sys\nprint(*sys.meta_path[:1])\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": f"{shim}:{shim.parent}", "IPEXCTL_METER": meter},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    *watched, finder = done.stdout.splitlines()
    assert sorted(watched) == (sorted(f"{name} 5" for name in METERED.values()) if meter else [])
    assert ("ModuleFinder" in finder) == bool(meter), "IPEX may still be imported"
