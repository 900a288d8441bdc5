"""Import and use each part of a stack once, and report each step on a pipe. `verify.py` starts this program.

Reports are JSON lines: {"steps", "backend", "module"} first, then {"begin": STEP} and {"end": STEP, "ok", "seconds",
"facts"} for each step. After a crash, `verify.py` sees which step had begun. The program ends at the first failure,
with `_exit`, because a partly loaded library may hang the interpreter's exit.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from importlib import metadata
from pathlib import PurePosixPath
from typing import Any, Callable

from ipexctl.node.common.json_records import parse_json
from ipexctl.node.env.check import normalize

IMPORT = "import "
"""Prefix of the step that imports a package: `import transformers`."""
NO_MODULES = {"benchmarks", "doc", "docs", "examples", "scripts", "test", "tests"}
"""Directories that some packages leave next to their module."""


def version_of(*names: str) -> str | None:
    """Return the version of the first of these packages that is installed; None if none is."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def torch_step(_: str) -> dict[str, Any]:
    """Multiply matrices, train a small model, and return facts of torch. Raises an ArithmeticError if one is wrong."""
    torch: Any = importlib.import_module("torch")
    capability = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", lambda: None)()
    product = torch.ones(32, 32) @ torch.ones(32, 32)
    if float(product.sum()) != 32.0**3:
        raise ArithmeticError(f"a matrix product is wrong: {float(product.sum())}")
    # get_cpu_capability() never says AMX, because oneDNN, which multiplies bf16 and int8 matrices, chooses AMX itself.
    amx = getattr(getattr(torch, "cpu", None), "_is_amx_tile_supported", lambda: None)()
    facts = {"torch": str(torch.__version__), "python": sys.version.split()[0], "capability": capability, "amx": amx}
    return {**facts, **bf16(torch, None)}


def ipex_step(_: str) -> dict[str, Any]:
    """Import IPEX, train a small model with it, and return facts of IPEX."""
    torch: Any = importlib.import_module("torch")
    ipex: Any = importlib.import_module("intel_extension_for_pytorch")
    return {"ipex": str(ipex.__version__), **bf16(torch, ipex)}


def bf16(torch: Any, ipex: Any) -> dict[str, Any]:
    """Return `bf16`: whether a small model can be trained in bf16, only used in bf16, or neither, as on older CPUs.

    `ipex`: the module, or None. Raises the first error if the model does not even work in float32.
    """
    first_error: BaseException | None = None
    attempts: dict[str, Callable[[], None]] = {
        "training": lambda: train(torch, ipex),
        "inference": lambda: infer(torch, ipex, in_bf16=True),
        "no": lambda: infer(torch, ipex, in_bf16=False),
    }
    for what, attempt in attempts.items():
        try:
            attempt()
        except (AssertionError, RuntimeError, NotImplementedError) as error:  # not supported by older CPUs
            first_error = first_error or error
        else:
            return {"bf16": what}
    assert first_error is not None
    raise first_error


def small_model(torch: Any) -> tuple[Any, Any]:
    """Return a model and its input."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    return model, torch.randn(32, 64)


def check_finite(torch: Any, value: Any) -> None:
    """Raise an ArithmeticError if a tensor has NaN or infinite values."""
    if not bool(torch.isfinite(value.float()).all()):
        raise ArithmeticError("a small model returns NaN or infinite values")


def train(torch: Any, ipex: Any) -> None:
    """Train a small model for one step in bf16. Raises an error of torch or IPEX if that does not work here. `ipex`:
    the module, or None."""
    model, x = small_model(torch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    if ipex is not None:
        model, optimizer = ipex.optimize(model, optimizer=optimizer, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    check_finite(torch, loss)


def infer(torch: Any, ipex: Any, *, in_bf16: bool) -> None:
    """Use a small model once, in bf16 or in float32. Raises an error of torch or IPEX if that does not work here.
    `ipex`: the module, or None."""
    model, x = small_model(torch)
    model.eval()
    dtype = {"dtype": torch.bfloat16} if in_bf16 else {}
    if ipex is not None:
        model = ipex.optimize(model, **dtype)
    with torch.no_grad(), torch.autocast("cpu", **dtype) if in_bf16 else contextlib.nullcontext():
        check_finite(torch, model(x))


def bindings_step(module_name: str) -> dict[str, Any]:
    """Import the oneCCL bindings and return their version."""
    importlib.import_module("torch")  # the bindings need it loaded first
    module = importlib.import_module(module_name)
    return {"oneccl": version_of("oneccl-bind-pt", "torch-ccl") or getattr(module, "__version__", None)}


def module_of(package: str) -> str | None:
    """Return the module of a package: the one with the package's name, else the one with most files.

    It may be inside a namespace: `google.protobuf`. None if the package has no module.
    """
    paths = [PurePosixPath(str(file)) for file in metadata.files(package) or ()]
    inits = {path.parent for path in paths if path.name == "__init__.py"}
    counts: dict[str, int] = {}
    for path in paths:
        name = path.name.partition(".")[0]
        top = next((parent for parent in reversed(path.parents) if parent in inits), None)
        if top is None and len(path.parts) == 1 and path.suffix in (".py", ".so"):
            top = PurePosixPath(name)
        parts = top.parts if top is not None else ()
        can_be_imported = bool(parts) and all(map(str.isidentifier, parts))
        if can_be_imported and not (parts[0].startswith("_") or parts[0] in NO_MODULES):
            counts[".".join(parts)] = counts.get(".".join(parts), 0) + 1
    own = [module for module in counts if normalize(module) == normalize(package)]
    return own[0] if own else max(counts, key=lambda module: counts[module], default=None)


def import_step(package: str) -> dict[str, Any]:
    """Import a package's module; do nothing for a package without one."""
    if module := module_of(package):
        importlib.import_module(module)
    return {}


STEPS: dict[str, Callable[[str], dict[str, Any]]] = {  # each gets the module of the bindings
    "torch": torch_step,
    "ipex": ipex_step,
    "bindings": bindings_step,
}


def choose_steps(backend: str, module: str | None, has_ipex: bool, packages: list[str]) -> tuple[list[str], str, str]:
    """Return the steps for parts that are installed or must be, the backend, and the module of the bindings.

    Imports nothing. `backend`: `auto` for ccl if the bindings are installed, else gloo.
    """
    modules = ("oneccl_bindings_for_pytorch", "torch_ccl")
    module = module or next((name for name in modules if importlib.util.find_spec(name)), None)
    if backend == "auto":
        backend = "ccl" if module else "gloo"
    has_ipex = has_ipex or importlib.util.find_spec("intel_extension_for_pytorch") is not None
    steps = ["torch", *(["ipex"] if has_ipex else []), *(["bindings"] if backend == "ccl" else [])]
    return [*steps, *(IMPORT + package for package in packages)], backend, module or modules[0]


def main(options_text: str) -> int:
    """Do the steps that are not done yet. `options_text`: JSON of the arguments of `choose_steps`, the steps that are
    done, and the pipe's number."""
    wanted, done, pipe = parse_json(options_text)
    report = os.fdopen(pipe, "w", buffering=1)

    def emit(**event: Any) -> None:
        report.write(json.dumps(event) + "\n")
        report.flush()

    steps, backend, module = choose_steps(*wanted)
    emit(steps=steps, backend=backend, module=module)
    for step in steps:
        if step in done:
            continue
        emit(begin=step)
        began = time.monotonic()
        try:
            facts = import_step(step[len(IMPORT) :]) if step.startswith(IMPORT) else STEPS[step](module)
        except BaseException:  # noqa: BLE001  # importing IPEX may call exit()
            traceback.print_exc()
            sys.stderr.flush()
            emit(end=step, ok=False, seconds=round(time.monotonic() - began, 3), facts={})
            os._exit(1)  # a partly loaded library may hang the interpreter's exit
        emit(end=step, ok=True, seconds=round(time.monotonic() - began, 3), facts=facts)
    sys.stdout.flush()
    os._exit(0)
