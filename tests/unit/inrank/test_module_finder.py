"""Each hook of a rank acts, whatever asks for the module's spec before it is imported, with stand-ins for the modules.
transformers, datasets and others ask for torch's to see if it is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ipexctl
from ipexctl.node.run.rank import rank_hooks

HOOKS = Path(ipexctl.__file__).parent / "node/run/rank"
VARIABLES = {
    "IPEXCTL_METER": "/proc/1/fd/9",
    "IPEXCTL_PROFILE": "1",
    "IPEXCTL_ALLREDUCE": "shared",
    "IPEXCTL_SHARE_WEIGHTS": "auto",
    "IPEXCTL_FP32_MATH": "bf16",
    "IPEXCTL_AUTOCAST": "bf16",
    "IPEXCTL_FUSED_OPTIMIZER": "1",
    "RANK": "0",
}
DDP = rank_hooks.DDP_MODULE
WATCHED = {**rank_hooks.METERED, **rank_hooks.PROFILED, **rank_hooks.RENDEZVOUS}
CALLS = {
    "meter": rank_hooks.METERED,
    "profiler": rank_hooks.PROFILED,
    "tcp_store": rank_hooks.RENDEZVOUS,
}
EXPECTED = [
    *(f"{module} {function} {name}" for module, calls in CALLS.items() for name, function in calls.items()),
    "shared_weights install torch",
    *("fast autocast_models torch", "fast fuse_optimizers torch", "torch set_float32_matmul_precision medium"),
    *("ddp attach", "meter on_model", "collectives on_group 1 2 [0, 3]"),
]
INRANK = """\
import types
def report(*words): print(*words, flush=True)
def meter(): return types.SimpleNamespace(__name__="torch.optim", on_model=lambda model: report(NAME, "on_model"))
def attach(model): report(NAME, "attach")
def on_group(group, store, numbers): report(NAME, "on_group", group, store, numbers)
def __getattr__(name): return lambda module: report(NAME, name, module.__name__)
"""
PACKAGES = {
    "torch/__init__.py": """\
__version__ = "2.3.0"
def set_float32_matmul_precision(name): print("torch set_float32_matmul_precision", name, flush=True)
""",
    "torch/distributed/distributed_c10d.py": "def _new_process_group_helper(*_): return 1, 2\n",
    f"{DDP.replace('.', '/')}.py": "class DistributedDataParallel:\n    def __init__(self): pass\n",
}
ASK = """\
import importlib.util
def ask(names):
    for name in names:
        for _ in range(2):
            assert importlib.util.find_spec(name).name == name
"""
IMPORT = f"""\
import importlib, sys
def import_all():
    for name in {sorted(WATCHED)!r}: importlib.import_module(name)
    from {DDP} import DistributedDataParallel
    DistributedDataParallel()
    importlib.import_module("torch.distributed.distributed_c10d")._new_process_group_helper(2, 0, [0, 3], "gloo")
"""
CHILD = """
import multiprocessing
def train():
    context = multiprocessing.get_context({way!r})
    child = context.Process(target=child_trains)
    child.start()
    child.join(20)
    assert child.exitcode == 0, child.exitcode
def child_trains():
    ask(["torch"])
    import_all()
"""
WAYS = {
    "script": "def train(): import_all()\n",
    "spawn": CHILD.format(way="spawn"),
    "fork": CHILD.format(way="fork"),
    "forkserver": CHILD.format(way="forkserver"),
    "thread": "import threading\ndef train():\n    threads = [threading.Thread(target=each) for each in (import_all,)]"
    "\n    threads[0].start(); threads[0].join()\n",
    "lazy": """\
def train():
    spec = importlib.util.find_spec("torch")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sys.modules["torch"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.__version__
    import_all()
""",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finder")
    shim = place / "hooks"
    shutil.copytree(HOOKS, shim, ignore=shutil.ignore_patterns("__pycache__"))
    (shim / "rank_hooks.py").rename(shim / "ipexctl_hooks.py")
    modules = {f"{name.replace('.', '/')}.py": "" for name in WATCHED}
    inrank = {
        f"hooks/ipexctl_inrank/{name}.py": INRANK.replace("NAME", repr(name))
        for name in (*CALLS, "fast", "ddp", "collectives", "shared_weights")
    }
    for name, text in {**modules, **PACKAGES, **inrank, "hooks/ipexctl_inrank/__init__.py": ""}.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for package in path.relative_to(place).parents[:-1]:
            (place / package / "__init__.py").touch()
        # A package has the same name as one of the modules in it.
        path = path.with_suffix("") / "__init__.py" if path.with_suffix("").is_dir() else path
        path.write_text(text)
    return place


def run_script(place: Path, way: str, asked: str, words: list[str]) -> list[str]:
    main = f"if __name__ == '__main__':\n    ask({asked})\n    train()\n"
    (place / "train_it.py").write_text(ASK + IMPORT + WAYS[way] + main)
    argv = [sys.executable, *words]
    done = run(place, argv)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def run(place: Path, argv: list[str]) -> subprocess.CompletedProcess[str]:
    reader, writer = os.pipe()  # a rank of ours has it
    notes = f"{writer}:{os.fstat(writer).st_ino}"
    environ = {"PYTHONPATH": f"{place}/hooks:{place}", "IPEXCTL_NOTES": notes, **VARIABLES}
    try:
        return subprocess.run(
            argv, env=environ, cwd=place, capture_output=True, text=True, check=False, timeout=60, pass_fds=[writer]
        )
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asked", ["[]", '["torch"]', f'["torch", *{sorted(WATCHED)!r}]'], ids=["none", "torch", "all"])
def test_each_hook_acts_once_in_the_process_that_imports(place: Path, way: str, asked: str) -> None:
    found = run_script(place, way, asked, ["train_it.py"])
    is_new_process = way in ("spawn", "forkserver")
    expected = [line for line in EXPECTED if not (is_new_process and line.startswith("tcp_store"))]  # it has no pipe
    if is_new_process and asked not in ("[]", '["torch"]'):
        # Python imports the package of a module that is asked for: here also in the parent, which has its own hooks.
        expected += [
            line for line in EXPECTED if line.endswith((" torch", " medium", " torch.optim", " torch.autograd"))
        ]
    assert found == sorted(expected)


@pytest.mark.parametrize(
    "words", [["-m", "train_it"], ["-c", "import runpy; runpy.run_path('train_it.py', None, '__main__')"]]
)
def test_the_start_of_the_script_makes_no_difference(place: Path, words: list[str]) -> None:
    assert run_script(place, "script", '["torch"]', words) == sorted(EXPECTED)


def test_a_module_that_fails_keeps_its_hooks_for_the_next_import(place: Path) -> None:
    script = "import builtins\ntry: import torch\nexcept ImportError: builtins.there = True\nimport torch\n"
    torch = place / "torch/__init__.py"
    before = torch.read_text()
    torch.write_text(f"import builtins\nif not hasattr(builtins, 'there'): raise ImportError\n{before}")
    try:
        done = run(place, [sys.executable, "-c", script])
    finally:
        torch.write_text(before)
    assert done.stdout.count("fast autocast_models torch") == 1, done.stderr
