"""The step meter from the hooks of a rank to its ring, with stand-ins for torch and IPEX in a Python of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ipexctl
from case_table import case_table
from ipexctl.node.run.meter.meter_reader import MeterReader, StepRecord

PACKAGE = Path(ipexctl.__file__).parent
TORCH = """\
import types
__version__ = "2.13.0+cpu"
grad = compiling = False
compiler = types.SimpleNamespace(is_compiling=lambda: compiling)
def is_grad_enabled():
    return not grad
import torch.autograd
import torch.nn
import torch.optim.optimizer
import torch.utils.data.dataloader
"""
OPTIMIZER = """\
before, after = [], []
register_optimizer_step_pre_hook, register_optimizer_step_post_hook = before.append, after.append
class Optimizer:
    def __init__(self): pass
class Adam(Optimizer):
    def step(self):
        for hook in before: hook(self, (), {})
        for hook in after: hook(self, (), {})
"""
LOADER = """\
class Tensor:
    def __init__(self, *shape): self.shape = shape
class _BaseDataLoaderIter:
    _auto_collation, _dataset_kind = True, 1
    def _next_index(self): return [0] * 4
    def __init__(self, count, size): self.count, self.size = count, size
    def __iter__(self): return self
    def __next__(self):
        if not self.count: raise StopIteration
        self.count -= 1
        self._next_index()
        return {"x": Tensor(self.size, 3)}
class Iter(_BaseDataLoaderIter): pass
"""
FUSED = """\
from torch.optim.optimizer import Adam
def adam_step(self, closure=None): return "fused"
OPTIMIZER_FUSED_STEP_MAPPING_CPU = {Adam: adam_step}
"""
FILES = {
    "torch/__init__.py": TORCH,
    "torch/autograd/__init__.py": "def backward(value): return value",
    "torch/nn/__init__.py": "from torch.nn.modules.module import Module",
    "torch/nn/modules/__init__.py": "",
    "torch/nn/modules/module.py": "class Module:\n    def __init__(self, size=0): self.size = size",
    "torch/optim/__init__.py": "",
    "torch/optim/optimizer.py": OPTIMIZER,
    "torch/utils/__init__.py": "",
    "torch/utils/data/__init__.py": "",
    "torch/utils/data/dataloader.py": LOADER,
    "intel_extension_for_pytorch/__init__.py": "from .optim import _optimizer_utils",
    "intel_extension_for_pytorch/optim/__init__.py": "",
    "intel_extension_for_pytorch/optim/_optimizer_utils.py": FUSED,
}
TRAIN = """\
import os, sys, time, torch
from torch.optim.optimizer import Adam
from torch.utils.data.dataloader import Iter
optimizer = Adam()
def train(count, size=8):
    for batch in Iter(count, size):
        optimizer.step()
        time.sleep(0.021)
"""


@pytest.fixture
def ring() -> Iterator[MeterReader]:
    reader = MeterReader.create()
    assert reader is not None
    yield reader
    reader.close()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shim = tmp_path / "hooks"
    shutil.copytree(PACKAGE / "inrank", shim / "ipexctl_inrank", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE / "node/run/rank/sitecustomize.py", shim)
    shutil.copy(PACKAGE / "node/run/rank/rank_hooks.py", shim / "ipexctl_hooks.py")
    return tmp_path


def run(site: Path, ring: MeterReader | None, script: str, before: str = "", **more: str) -> list[StepRecord]:
    variables = {**({"IPEXCTL_METER": ring.path} if ring is not None else {}), **more}
    done = subprocess.run(
        [sys.executable, "-c", before + TRAIN + script],
        env={"PYTHONPATH": f"{site}/hooks:{site}", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return ring.read() if ring is not None else []


def test_the_oldest_torch_tells_in_another_place_that_it_compiles(site: Path, ring: MeterReader) -> None:
    text = TORCH.replace("2.13.0", "2.1.2").replace("compiler =", "_utils =")
    (site / "torch/__init__.py").write_text(text)
    assert [record.steps for record in run(site, ring, "train(2)\ntorch.compiling = True\ntrain(2)")] == [1, 2, 2]


def test_steps_samples_and_thread_of_a_training(site: Path, ring: MeterReader) -> None:
    records = run(site, ring, "train(5)")
    assert [(record.steps, record.samples, record.unknown) for record in records] == [
        (n, 8 * n, 0)
        for n in (*range(1, 6), 5)  # the last one with the group
    ]
    assert all(record.thread > 0 and record.wait > 0 for record in records)


def test_samples_are_the_rows_of_the_dataset_that_a_batch_has_packed(site: Path, ring: MeterReader) -> None:
    records = run(site, ring, "Iter._dataset_kind = 0; train(3)")
    assert [record.samples for record in records][:3] == [4, 8, 12]


def test_without_the_variable_nothing_is_loaded(site: Path) -> None:
    run(site, None, "train(2); assert not [name for name in sys.modules if 'ipexctl' in name]")


def test_without_profile_its_module_is_not_loaded(site: Path, ring: MeterReader) -> None:
    run(
        site,
        ring,
        "train(2); assert 'ipexctl_inrank.meter' in sys.modules; assert 'ipexctl_inrank.profiler' not in sys.modules",
    )


def test_a_profile_that_is_not_possible_leaves_the_training_as_it_is(site: Path, ring: MeterReader) -> None:
    """Stand-ins for torch have no profiler."""
    path = site / "0001.profile"
    records = run(site, ring, "import torch.optim; train(9)", IPEXCTL_PROFILE=str(path), RANK="1")
    assert records[-1].steps == 9
    assert not any(record.unknown for record in records)
    assert json.loads(path.read_text()) == {
        "note": "AttributeError: module 'torch.autograd' has no attribute '_profiler_enabled'"
    }


def test_too_few_steps_for_a_profile_are_noted(site: Path, ring: MeterReader) -> None:
    path = site / "0001.profile"
    run(site, ring, "import torch.optim; train(1)", IPEXCTL_PROFILE=str(path), RANK="1")
    assert json.loads(path.read_text())["note"].startswith("the script ended after 1 optimizer step;")


def test_faster_steps_share_a_record(site: Path, ring: MeterReader) -> None:
    records = run(site, ring, "for _ in range(5000): optimizer.step()\ntime.sleep(0.03); optimizer.step()")
    assert records[-1].steps == 5001
    assert len(records) < 1000


DISTRIBUTED = """
import types
group = types.ModuleType("torch.distributed")
group.size = 0
group.is_available, group.is_initialized = lambda: True, lambda: group.size > 0
group.get_world_size = lambda: group.size
sys.modules["torch.distributed"] = group
def step(count):
    for _ in range(count): optimizer.step()
"""
RPC = """
rpc = sys.modules["torch.distributed.rpc"] = types.ModuleType("torch.distributed.rpc")
rpc._is_current_rpc_agent_set = lambda: True"""


@pytest.mark.parametrize(
    ("script", "groups"),
    [
        ("train(1)", {0, 1}),
        ("group.size = 2; train(3); group.size = 0", {0, 2}),
        ("sys.modules['mpi4py'] = None; train(3)", {0}),
        ("train(21)", {0, 1}),
        ("step(25)", {0, 1}),
        ("group.size = 2; train(21)", {0, 2}),
        ("group.size = 2; step(25); group.size = 0", {0, 2}),
        ("group.size = 2; train(22); group.size = 0; train(9)", {0, 2}),
        ("train(21); group.size = 4; train(2)", {0, 1, 4}),
        ("sys.modules['mpi4py'] = None; train(21)", {0}),
        ("train(20); sys.modules['horovod'] = None; train(1)", {0, 1}),
        (f"{RPC}; train(21)", {0}),
    ],
)
def test_the_group_is_known_after_twenty_steps_or_the_last(
    site: Path, ring: MeterReader, script: str, groups: set[int]
) -> None:
    assert {record.group for record in run(site, ring, DISTRIBUTED + script)} == groups


def test_the_last_record_has_the_group_that_the_script_destroyed(site: Path, ring: MeterReader) -> None:
    records = run(site, ring, DISTRIBUTED + "group.size = 2; step(25); group.size = 0")
    assert (records[-1].steps, records[-1].group) == (25, 2)


LOSS = """\
class Loss:
    device, grad_fn = types.SimpleNamespace(type="cpu"), None
    def __init__(self, value): self.value = value
    def numel(self): return 1
    def detach(self): return self
    def __float__(self): return self.value
    def __add__(self, other): return Loss(self.value + other.value)
def losses(*values):
    for value in values:
        torch.autograd.backward(Loss(value))
        optimizer.step()
        time.sleep(0.021)
"""
NAN, INF = "float('nan')", "float('inf')"


@pytest.mark.parametrize(
    ("values", "since"),
    [
        *[("1.0, 2.0", 0), (f"1.0, {NAN}", 2), (f"1.0, {NAN}, {NAN}", 2), (f"{NAN}, 1.0", 0)],
        *[
            (f"{NAN}, 1.0, {NAN}", 3),
            (f"1.0, {INF}", 0),
            (f"1.0, {INF}, {INF}", 2),
            (f"1.0, {INF}, {NAN}", 2),
            (f"{INF}, 1.0, {NAN}", 3),
        ],
    ],
)
def test_the_step_since_which_the_loss_is_nan(site: Path, ring: MeterReader, values: str, since: int) -> None:
    records = run(site, ring, f"import types\n{LOSS}losses({values})")
    assert records[-1].nan_since == since


def test_the_losses_of_accumulated_gradients_are_one(site: Path, ring: MeterReader) -> None:
    records = run(site, ring, f"import types\n{LOSS}torch.autograd.backward(Loss({NAN})); losses(1.0)")
    assert records[-1].nan_since == 1
    records = run(site, ring, f"import types\n{LOSS}torch.autograd.backward(Loss({NAN})); losses(1.0, 1.0)")
    assert records[-1].nan_since == 0


GROUPS = """\
class Group:
    made = 0
    def _get_sequence_number_for_group(self): return self.made
first = Group()
world = types.SimpleNamespace(pg_map={first: ("gloo", None)})
sys.modules["torch.distributed.distributed_c10d"] = types.SimpleNamespace(_world=world)
"""


@pytest.mark.parametrize(
    ("script", "is_apart"),
    [
        ("train(21)", True),
        ("train(3)", True),
        ("train(1)", False),  # its collectives may have been made before
        ("train(10); first.made += 1; train(11)", False),
        ("train(21); first.made += 1; train(2)", False),
        ("world.pg_map[first] = ('ccl', None); train(21)", False),  # it does not number its collectives
        ("torch.__version__ = '2.8.0'; train(21)", False),
    ],
)
def test_ranks_that_call_no_collective_between_steps_are_apart(
    site: Path, ring: MeterReader, script: str, is_apart: bool
) -> None:
    records = run(site, ring, f"import types\n{DISTRIBUTED}{GROUPS}group.size = 2; {script}")
    assert records[-1].is_apart == is_apart


@case_table
def test_a_training_script_that_ends_without_using_torch(
    site: Path, ring: MeterReader, script: str, is_unused: bool
) -> None:
    """All call backward, except for the one without a text."""
    path = site / "own/script.py"
    path.parent.mkdir()
    path.write_text("loss.backward()" if script else "print(1)")
    records = run(site, ring, f"del __file__\n{script}", before=f"__file__ = {str(path)!r}\n")  # as Python at the end
    assert [record.is_unused for record in records] == [is_unused] * len(records)
    assert records or not is_unused


PARAMETERS = """
class Parameter:
    def __init__(self, value): self.value = value
    def numel(self): return 1
    def detach(self): return self
    def reshape(self, size): return self
    def __getitem__(self, cut): return self
    def clone(self): return Parameter(self.value)
    def __hash__(self): return id(self)
    def __eq__(self, other): return types.SimpleNamespace(all=lambda: self.value == other.value)
class Input(Parameter): pass
class Node:
    def __init__(self, *following, **leaf):
        self.next_functions = [(node, 0) for node in following]
        vars(self).update(leaf)
    def name(self): return "MeanBackward0"
torch.nn.Parameter = Parameter
weight = Parameter(1.0)
def backward(*leaves):
    loss = Loss(0.5)
    loss.grad_fn = Node(*[Node(variable=each) for each in (weight, *leaves)])
    torch.autograd.backward(loss)
"""


@case_table
def test_backwards_that_change_no_parameter_are_no_training(
    site: Path, ring: MeterReader, script: str, is_unused: bool
) -> None:
    records = run(site, ring, f"import types\n{LOSS}{PARAMETERS}{script}")
    assert any(record.is_unused for record in records) == is_unused


def test_only_the_first_module_is_noticed(site: Path, ring: MeterReader) -> None:
    script = "before = torch.nn.Module.__init__\nassert torch.nn.Module(4).size == 4\n"
    run(site, ring, script + "assert torch.nn.Module.__init__ is not before and torch.nn.Module(5).size == 5")


def test_batches_without_gradients_are_no_samples(site: Path, ring: MeterReader) -> None:
    evaluate = "torch.grad = True; list(Iter(9, 64)); torch.grad = False\n"
    assert run(site, ring, f"train(2); {evaluate}train(2)")[-1].samples == 32


def test_a_compiled_step_is_not_traced(site: Path, ring: MeterReader) -> None:
    assert run(site, ring, "torch.compiling = True; train(2); torch.compiling = False; train(1)")[-1].steps == 1


def test_fused_steps_of_ipex_are_counted(site: Path, ring: MeterReader) -> None:
    script = """
import types
import intel_extension_for_pytorch.optim._optimizer_utils as utils
optimizer.step = types.MethodType(utils.OPTIMIZER_FUSED_STEP_MAPPING_CPU[Adam], optimizer)
assert optimizer.step() == "fused"
time.sleep(0.021)
train(2)
"""
    assert [record.steps for record in run(site, ring, script)] == [1, 2, 3, 3]


def test_a_child_that_inherits_no_descriptors_is_metered_and_a_forked_one_is_not(site: Path, ring: MeterReader) -> None:
    script = """
if len(sys.argv) == 1:
    import subprocess
    subprocess.run([sys.executable, "-c", open("/proc/self/cmdline").read().split(chr(0))[2], "child"], check=True)
else:
    train(2)
    if not os.fork():
        train(3)
        os._exit(0)
    os.wait()
    train(1)
"""
    assert [record.steps for record in run(site, ring, script)] == [1, 2, 3, 3]


def test_a_forked_child_is_metered_if_its_parent_has_not_stepped(site: Path, ring: MeterReader) -> None:
    script = """
if not os.fork():
    train(3)
    os._exit(0)
os.wait()
"""
    assert [record.steps for record in run(site, ring, script)] == [1, 2, 3]


@pytest.mark.parametrize(
    "breaks",
    [
        "import ipexctl_inrank.meter as m; m.meter().counter.after_step = None",
        "import ipexctl_inrank.meter as m; m.meter().counter.on_batch = None",
        "import ipexctl_inrank.meter as m; m.meter()._path = '/nowhere'",
    ],
)
def test_no_error_reaches_the_script(site: Path, ring: MeterReader, breaks: str) -> None:
    assert run(site, ring, f"{breaks}; train(3); print('end')") == []


def test_a_package_that_fails_leaves_the_script_alone(site: Path, ring: MeterReader) -> None:
    (site / "hooks/ipexctl_inrank/meter.py").write_text("raise ImportError")
    assert run(site, ring, "train(2)") == []
