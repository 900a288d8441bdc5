"""Errors of real stacks, and the explanations made from them."""

from __future__ import annotations

import pytest
from stack_helpers import planned

from ipexctl.node.common.records import Detail
from ipexctl.node.env.env_replies import EnvRecord, VerifyPhase, VerifyResult
from ipexctl.stack.catalog import merged
from ipexctl.stack.env.environment import explain
from ipexctl.stack.env.record import SCHEMA
from ipexctl.stack.lock.wheel_lock import LacksVersion, refuse_ended_packages
from ipexctl.stack.resolve.model import EnvRequest, StackRequest
from ipexctl.stack.resolve.resolver import resolve
from message_data import missing

IPEX_MISMATCH = """ERROR! Intel® Extension for PyTorch* \
needs to work with PyTorch 2.8.*, but PyTorch 2.13.0+cpu is found.
Traceback (most recent call last):
AttributeError: module 'os' has no attribute 'exit'"""
KILLED = "=   RANK 1 PID 8944 RUNNING AT 10.77.0.2\n=   KILLED BY SIGNAL: {}"

NO_NUMPY = "/e/torch/nn.py:20: UserWarning: Failed to initialize NumPy: No module named 'numpy' (Triggered internally"
NO_GPU = "/e/torch/cuda.py:9: UserWarning: CUDA initialization: Found no NVIDIA driver on your system."
NO_TRANSPORT = "EXCEPTION: could not initialize any transport library"
NUMPY_2 = "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.0.2 as it may crash."
SOCKET_TIMEOUT = "The client socket has timed out after 40000ms while trying to connect to (127.0.0.1, 29511)."
NO_PEER = (
    SOCKET_TIMEOUT,
    "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error, remote=[127.0.0.1]:25310",
    "DistStoreError: Timed out after 41 seconds waiting for clients. 1/2 clients joined.",
    "The client socket has failed to connect to any network address of (127.0.0.1, 29511).",
)
TIMED_OUT: dict[str, object] = {"timed_out": True, "rc": 143, "seconds": 60.0}
OTHER_NAME = "cannot import name 'a' from 'torch.b'"

WRONG_RESULT = Detail("wrong-result", {"what": "the sum over 2 ranks is 4 to 4 and not 3"})
CASES: list[tuple[str, str, dict[str, object]]] = [
    ("ipex", IPEX_MISMATCH, {}),
    ("ipex", "NameError: name 'exit' is not defined", {}),
    (
        "bindings",
        "ImportError: /e/liboneccl_bindings_for_pytorch.so: undefined symbol: _ZN2at14RecordFunction6beforeEPKcl",
        {},
    ),
    ("ipex", "ImportError: /e/libintel-ext-pt-cpu.so: undefined symbol: _ZN3c10", {}),
    ("bindings", "undefined symbol: _ZNK4sycl3_V15queue30ext_oneapi", {}),
    ("bindings", "OSError: libsycl.so.9: cannot open shared object file", {}),
    ("bindings", "ImportError: libccl.so.1: cannot open shared object file: No such", {}),
    ("bindings", "ImportError: libmpi.so.12: cannot open shared object file", {}),
    ("ipex", "OSError: libiomp5.so: cannot open shared object file: No such", {}),
    (
        "allreduce",
        (
            "could not open the library: libmpi.so.12\nRuntimeError: oneCCL: api_wrapper.cpp:39 api_wrappers_init: "
            "EXCEPTION: could not initialize any transport library\n"
            "Failed to recv, got 0 bytes. Connection was likely closed."
        ),
        {},
    ),
    ("allreduce", "could not open the library: libfabric.so\nAbort(1090959) PMPI_Init_thread", {}),
    (
        "allreduce",
        (
            "check_impi_env: CCL/MPI uses Intel(R) MPI Library but neither I_MPI_ROOT nor ONEAPI_ROOT is set.\n"
            "EXCEPTION: failed to initialize ATL"
        ),
        {},
    ),
    ("allreduce", "setvars.sh: 5: prepend_path: not found", {}),
    (
        "allreduce",
        "Abort(2139535) on node 0: Fatal error in PMPI_Init_thread find_provider(2954): OFI fi_getinfo() failed",
        {"rc": 143},
    ),
    ("allreduce", "mpirun: 109: mpiexec.hydra: not found", {"rc": 127}),
    ("allreduce", "Error: Unable to run bstrap_proxy on node1 (pid 5, exit code 65280)", {"rc": 255}),
    ("allreduce", "server socket has failed to listen … EADDRINUSE", {}),
    ("allreduce", "AssertionError: Unknown backend type ccl", {}),
    ("allreduce", KILLED.format("7 (Bus error)"), {"rc": 255, "signal": 7}),
    ("allreduce", KILLED.format(11), {"rc": 255, "signal": 11}),
    (
        "allreduce",
        KILLED.format(9) + "\nRuntimeError: Connection closed by peer [127.0.0.1]:2000",
        {"rc": 255, "signal": 9},
    ),
    ("allreduce", "RuntimeError: Timed out waiting 30000ms for recv operation", {}),
    ("allreduce", "", {"timed_out": True, "rc": -15, "seconds": 60.0}),
    ("allreduce", "VerificationError: the sum over 2 ranks is 4 to 4 and not 3", {"detail": WRONG_RESULT}),
    ("allreduce", "VerificationError: no number", {"detail": Detail("wrong-mpi", {"what": "no number"})}),
    ("torch", "Fatal Python error: Illegal instruction", {"rc": -4, "signal": 4}),
    ("ipex", "", {"rc": -4, "signal": 4}),
    ("torch", "", {"rc": -11, "signal": 11}),
    ("torch", "", {"rc": -9, "signal": 9}),
    ("torch", "", {"timed_out": True, "seconds": 300.0}),
    ("torch", "ModuleNotFoundError: No module named 'torch'", {}),
    ("ipex", "ModuleNotFoundError: No module named 'intel_extension_for_pytorch'", {}),
    ("torch", "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.0.0", {}),
    ("ipex", "OSError: [Errno 28] No space left on device", {}),
    ("torch", "RuntimeError: something nobody has seen", {"rc": 1}),
    ("torch", NO_NUMPY, {"rc": -4, "signal": 4}),
    ("torch", f"{NO_GPU}\n{NO_NUMPY}", {"timed_out": True, "seconds": 300.0}),
    ("allreduce", f"{NO_NUMPY}\n{NO_TRANSPORT}", {}),
    ("torch", f"{NO_GPU}\nRuntimeError: unseen", {}),
    (
        "bindings",
        (
            "ImportError: /e/liboneccl_bindings_for_pytorch.so: undefined symbol: _ZN2at\n\n"
            "During handling of the above exception, another exception occurred:\n\n"
            "ModuleNotFoundError: No module named 'torch_ccl'"
        ),
        {},
    ),
    ("torch", f"{NUMPY_2}\nAttributeError: _ARRAY_API not found", {}),
    ("allreduce", SOCKET_TIMEOUT, {"rc": 255, "signal": 11}),
    *(("allreduce", text, {}) for text in NO_PEER),
    *(("allreduce", text, TIMED_OUT) for text in NO_PEER),
    ("allreduce", KILLED.format("9 (Killed)"), {"timed_out": True, "rc": 137, "seconds": 60.0}),
    ("torch", "", {"timed_out": True, "rc": 143, "seconds": 300.0}),
    ("torch", "", {"rc": -6, "signal": 6}),
    ("torch", "OSError: [Errno 30] Read-only file system: '/h/x'", {}),
    ("ipex", f"ImportError: {OTHER_NAME}", {}),
    ("allreduce", "HYD_sock_connect: getaddrinfo returned error -2", {}),
    ("allreduce", "[c10d] cannot be retrieved (gai error: -2 - Name or service not known)", {}),
    ("allreduce", "unable to connect to server n1 at port 4 (check for firewalls!)", {}),
    ("allreduce", "Abort(1090959): PMPI_Init_thread(143): MPI_Init_thread failed", {}),
    ("allreduce", "find_provider(2954): fi_getinfo() failed", {}),
    ("allreduce", "Connection was likely closed. Did the remote server shutdown or crash?", {}),
    ("allreduce", "TimeoutError: timed out", {}),
    ("import torchvision", "RuntimeError: operator torchvision::nms does not exist", {}),
    ("import torchaudio", "OSError: Could not load this library: /e/torchaudio/lib/_torchaudio.abi3.so", {}),
    ("import deep", "KeyError: 'x'", {}),
]


def broken(name: str, text: str, **more: object) -> VerifyResult:
    fields: dict[str, object] = {"ok": False, "seconds": 1.0, "rc": 1, **more}
    return VerifyResult(False, (VerifyPhase(name=name, text=text, **fields),), 2.0, backend="ccl")  # type: ignore[arg-type]


def told(
    name: str, text: str, env: str = "ipex-2.8", record: EnvRecord | None = None, **more: object
) -> tuple[str, str]:
    """The reason and the fix for a failed step with this output."""
    found = explain(broken(name, text, **more), env=env, record=record)
    assert found is not None
    return found


@pytest.mark.parametrize(("phase", "text", "more"), CASES)
def test_verification_failures_are_explained_with_a_fix(phase: str, text: str, more: dict[str, object]) -> None:
    why, advice = told(phase, text, **more)  # type: ignore[arg-type]
    assert "ipex-2.8" in why
    assert advice
    assert "{" not in why + advice
    assert missing(why, "None script") == ["None", "script"]


RECORD = EnvRecord(
    schema=SCHEMA,
    name="ipex-2.8-12345678",
    row="ipex-2.8",
    python="3.11",
    interpreter="",
    digest="",
    packages={"torch": "2.8.0", "oneccl-bind-pt": "2.8.0+cpu"},
    backend="ccl",
    requests=(),
)
NO_LIBRARY = (
    ("bindings", "ImportError: libccl.so.1: cannot open shared object file: No such"),
    ("bindings", "ImportError: libmpi.so.12: cannot open shared object file"),
    ("bindings", "ImportError: libfabric.so.1: cannot open shared object file"),
    ("allreduce", "EXCEPTION: could not initialize any transport library"),
)


@pytest.mark.parametrize(("phase", "text"), NO_LIBRARY)
def test_fix_for_bindings_without_oneccl_is_a_row_that_adds_oneccl_and_impi(phase: str, text: str) -> None:
    reason, fix = told(phase, text, env="ipex-2.8-12345678", record=RECORD)
    assert missing(reason, "oneccl_bind_pt 2.8.0+cpu ipex-2.8-12345678") == []
    assert missing(fix, "rows.json ipexctl oneccl impi-rt") == []
    row = fix[fix.index("[{") : fix.index("}]") + 2]
    plan = planned(resolve(StackRequest(stack="ipex-2.8"), {}, None, rows=merged(row, "rows.json")))
    assert {"oneccl==2021.15.*", "impi-rt==2021.15.*", "intel-openmp==2024.1.2"} <= set(plan.requirements)


def test_no_row_is_suggested_if_packages_are_installed_or_unavailable() -> None:
    whole = RECORD._replace(packages={"oneccl-bind-pt": "2.8.0", "oneccl": "2021.15.2", "impi-rt": "2021.15.0"})
    old = RECORD._replace(row="ipex-2.5", packages={"oneccl-bind-pt": "2.5.0"})
    for record, expected in ((whole, "ipexctl"), (old, "--wheelhouse")):
        _, fix = told(*NO_LIBRARY[0], record=record)
        assert "rows.json" not in fix
        assert missing(fix, expected) == []


def test_successful_verification_has_no_explanation() -> None:
    assert explain(VerifyResult(True, (VerifyPhase("torch", True, 1.0),), 1.0), env="ipex-2.8") is None


@pytest.mark.parametrize(("record", "of_user"), [(RECORD, False), (None, True)])
def test_no_fix_removes_an_environment(record: EnvRecord | None, of_user: bool) -> None:
    reason, fix = told("ipex", IPEX_MISMATCH, env="/opt/venv/bin/python", record=record)
    assert "--remove" not in fix
    assert ("--stack" in fix) is not of_user
    assert "/opt/venv/bin/python" in reason


def test_fix_for_a_user_python_does_not_suggest_another_stack() -> None:
    _, fix = told("allreduce", "", env="/opt/venv/bin/python", detail=WRONG_RESULT)
    assert missing(fix, "doctor --smoke ipexctl install versions") == ["versions"]


def test_known_error_text_takes_precedence_over_the_mpirun_exit_code() -> None:
    assert "SIGTERM" not in told("allreduce", "OFI fi_getinfo() failed", rc=143)[0]


def test_first_failed_phase_is_explained() -> None:
    steps = (VerifyPhase("ipex", False, 1.0, 1, text=IPEX_MISMATCH), VerifyPhase("allreduce", False, 1.0, 1))
    found = explain(VerifyResult(False, (VerifyPhase("torch", True, 1.0), *steps), 2.0), env="e")
    assert found is not None
    assert missing(found[0], "IPEX 2.8 2.13.0+cpu") == []


@pytest.mark.parametrize(("phase", "text", "fields"), CASES)
def test_fix_is_never_only_the_call_that_failed(phase: str, text: str, fields: dict[str, object]) -> None:
    for record in (RECORD, RECORD._replace(row="torch-2.13")):
        _, fix = told(phase, text, env="ipex-2.8-12345678", record=record, **fields)
        assert not fix.startswith("run "), fix
        assert f"--stack {record.row}" not in fix.replace(f"--stack {record.row} --with", "")


def test_module_that_nothing_requires_is_added_to_the_stack() -> None:
    old = RECORD._replace(row="ipex-1.12")
    for module, package in (("numpy", "numpy"), ("pkg_resources", "'setuptools<81'"), ("yaml.nodes", "pyyaml")):
        text = f"ModuleNotFoundError: No module named '{module}'"
        _, fix = told("ipex", text, env="ipex-1.12-12345678", record=old)
        assert fix.endswith(f"--stack ipex-1.12 --with {package}")
    _, fix = told("ipex", "ModuleNotFoundError: No module named 'torch'", env="ipex-1.12-12345678", record=old)
    assert "--with" not in fix


def test_package_that_fails_or_lacks_another_is_named_with_the_line_to_type() -> None:
    record = RECORD._replace(packages={"deep-speed": "0.19.8"})
    assert missing(told("import Deep_Speed", "KeyError: 'x'", record=record)[1], "'Deep_Speed<0.19.8'") == []
    gone = "AttributeError: module 'matplotlib.cm' has no attribute 'get_cmap'"
    traceback = 'Traceback (most recent call last):\n  File "/e/verify_steps.py", line 133, in check\n'
    reason, fix = told("import Deep_Speed", traceback + gone, record=record)
    assert "verify_steps" not in reason
    assert (fix.endswith("ipexctl install --with 'matplotlib<3.9'"), "get_cmap" in reason) == (True, True)
    _, fix = told("import Deep_Speed", "ModuleNotFoundError: No module named 'hydra'", record=record)
    assert fix.endswith("ipexctl install --stack ipex-2.8 --with Deep_Speed --with hydra-core")


def test_failed_stack_of_torch_alone_names_the_one_before() -> None:
    _, fix = told("torch", "RuntimeError: x", env="torch-2.13-1", record=RECORD._replace(row="torch-2.13"))
    assert "--stack torch-2.12" in fix
    _, fix = told("torch", "RuntimeError: x", env="torch-2.7-1", record=RECORD._replace(row="torch-2.7"))
    assert "--stack torch" in fix


@pytest.mark.parametrize(
    ("name", "module", "words", "never"),
    [
        ("import peft", "torchao.dtypes.affine", "torchao 0.17.0 'torchao<0.17.0'", "--with peft"),
        ("import torchao", "torchao.dtypes", "torchao 0.17.0 'torchao<0.17.0'", "not installed"),
        ("torch", "torch.distributed.nothing", "torch 2.8.0 --stack", "--with torch"),
    ],
)
def test_installed_package_without_a_module_is_too_new_or_too_old(
    name: str, module: str, words: str, never: str
) -> None:
    record = RECORD._replace(packages={"torchao": "0.17.0", "torch": "2.8.0+cpu", "peft": "0.9"})
    reason, fix = told(name, f"ModuleNotFoundError: No module named '{module}'", record=record)
    assert missing(f"{reason} {fix}", f"{words} {module} too new too old") == []
    assert "not installed" not in reason
    assert never not in fix


def test_no_package_is_guessed_for_a_module_that_nobody_knows() -> None:
    record = RECORD._replace(packages={"peft": "0.9"})
    _, fix = told("import peft", "ModuleNotFoundError: No module named 'frobnicate'", record=record)
    assert "--with frobnicate" not in fix
    assert missing(fix, "no package known leave peft out") == []


@pytest.mark.parametrize(("asked", "has_line"), [("torchdata", True), ("torchdata<0.11.0", False), ("six", True)])
def test_older_version_is_suggested_once(asked: str, has_line: bool) -> None:
    packages = {"torch": "2.13.0+cpu", "torchdata": "0.10.1"}
    record = RECORD._replace(packages=packages, requests=(EnvRequest(StackRequest(), (asked,)).to_json(),))
    _, fix = told("import torchdata", "AttributeError: what no table has", record=record)
    assert ("torchdata<0.10.1" in fix) == has_line
    assert "leave torchdata out" in fix


def test_package_without_further_releases_is_refused_before_its_torch_is_replaced() -> None:
    with pytest.raises(LacksVersion) as raised:
        refuse_ended_packages(["six", "torchtext>=0.6"], "2.13.0")
    assert raised.value.package == "torchtext"
    assert str(raised.value.fix).endswith("ipexctl install --torch 2.3 --with torchtext")
    refuse_ended_packages(["torchtext"], "2.3.1+cpu")
