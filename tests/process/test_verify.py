"""A stack is verified by using it, and each failure is reported correctly."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent_helpers import other_pythons, wait_until
from env_helpers import Home, said, session_of, start
from ipexctl.node.env.env_replies import VerifyPhase, VerifyResult
from ipexctl.remote.reply import Reply
from ipexctl.stack.env.environment import explain
from message_data import missing
from tiny_wheels import write_ipex, write_oneccl

if TYPE_CHECKING:
    from ipexctl.node.env.verify import VerifyRequest


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home.below(tmp_path_factory.mktemp("gloo"))
    home.build()
    return home


@pytest.fixture(scope="module")
def ccl(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home.below(tmp_path_factory.mktemp("ccl"), oneccl="2.8.0")
    home.build(record={"module": "oneccl_bindings_for_pytorch", "backend": "ccl"})
    return home


def request(home: Home, *, variables: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    record = home.record
    asked: VerifyRequest = {
        "python": f"{home.env}/bin/python",
        "variables": {**record["variables"], **(variables or {})},
        "prepended": record["prepended"],
        "backend": record["backend"],
        "module": record["module"],
        "ipex": False,
        "packages": [],
        "setup": None,
        "keep": None,
        "timeout": 20,
    }
    return {**asked, **more}


def verify(home: Home, asked: dict[str, Any], python: str = "", env: dict[str, str] | None = None) -> dict[str, Any]:
    return said(start("env.verify", "verify", asked, python=python or f"{home.env}/bin/python", env=env))


def verified(home: Home, *, env: dict[str, str] | None = None, **more: Any) -> VerifyResult:
    return Reply(verify(home, request(home, **more), env=env)).decode(VerifyResult)


def phases(result: VerifyResult) -> dict[str, bool]:
    return {phase.name: phase.ok for phase in result.phases}


def failed_phase(result: VerifyResult) -> VerifyPhase:
    assert result.failed is not None
    return result.failed


def explanation(result: VerifyResult) -> str:
    explained = explain(result, env="e")
    assert explained is not None
    return explained[0]


def test_stack_with_gloo_is_verified(gloo: Home) -> None:
    result = verified(gloo)
    assert result.ok
    assert phases(result) == {"torch": True, "ipex": True, "allreduce": True}
    assert (result.torch, result.ipex, result.backend, result.bf16) == ("2.8.0", "2.8.0", "gloo", "training")
    assert result.launcher == f"{gloo.env}/bin/mpiexec.hydra"
    assert len(result.allreduce_ms) == 2
    assert result.to_json()["phases"][0]["name"] == "torch"


@pytest.mark.core
def test_stack_with_oneccl_is_verified(ccl: Home) -> None:
    result = verified(ccl)
    assert phases(result) == {"torch": True, "ipex": True, "bindings": True, "allreduce": True}
    assert (result.oneccl, result.backend) == ("2.8.0", "ccl")
    assert "opt/mpi/bin/mpiexec.hydra" in str(result.launcher)


@pytest.mark.parametrize("python", other_pythons())
def test_verify_runs_under_every_python(gloo: Home, python: str) -> None:
    assert verify(gloo, request(gloo), python)["ok"]


@pytest.mark.parametrize(
    ("variables", "phases_ok", "number", "said"),
    [
        ({"TINY_CRASH": "import:11"}, {"torch": False}, 11, "torch SIGSEGV"),
        ({"TINY_CRASH": "optimize:4"}, {"torch": True, "ipex": False, "bindings": True}, 4, "IPEX SIGILL"),
        ({"TINY_CRASH": "allreduce:11"}, {"allreduce": False}, 11, "oneCCL SIGSEGV"),
        ({"TINY_WRONG_SUM": "1"}, {"bindings": True, "allreduce": False}, None, "2 4"),
        ({"CCL_ROOT": "/nowhere"}, {"ipex": True, "bindings": False}, None, "libccl.so.1"),
    ],
)
def test_failure_is_reported_for_its_phase_and_explained(
    ccl: Home, variables: dict[str, str], phases_ok: dict[str, bool], number: int | None, said: str
) -> None:
    """What does not depend on a failed phase is tried anyway; nothing is without torch."""
    result = verified(ccl, variables=variables)
    assert phases(result) | phases_ok == phases(result)
    assert phases_ok.get("torch", True) or len(phases(result)) == 1
    failed = failed_phase(result)
    assert failed.name == next(name for name, ok in phases_ok.items() if not ok)
    assert number in (None, failed.signal)
    assert missing(f"{failed.text} {explanation(result)}", said) == []


def test_hanging_ranks_are_ended_at_timeout(gloo: Home) -> None:
    began = time.monotonic()
    result = verified(gloo, variables={"TINY_HANG": "1"}, timeout=3)
    assert result.failed is not None
    assert (result.failed.name, result.failed.timed_out) == ("allreduce", True)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, None])
def test_interrupted_verify_leaves_no_rank(gloo: Home, how: signal.Signals | None) -> None:
    hung = request(gloo, variables={"TINY_HANG": "1"}, timeout=8)
    child = start("env.verify", "verify", hung, python=f"{gloo.env}/bin/python")
    assert child.stdout is not None
    for line in child.stdout:
        if b"two ranks" in line:
            break
    time.sleep(0.5)
    if how:
        child.send_signal(how)
    child.stdout.close()
    child.wait(15)
    wait_until(lambda: session_of(child.pid) == [])
    assert child.stderr is not None
    child.stderr.close()


def test_verify_uses_two_processes_without_mpirun(gloo: Home) -> None:
    hidden = gloo.env / "bin" / "mpirun"
    hidden.rename(hidden.with_name("hidden"))
    try:
        result = verified(gloo, env={"PATH": "/nowhere", "HOME": "/"})
    finally:
        hidden.with_name("hidden").rename(hidden)
    assert result.ok
    assert result.launcher is None


@pytest.mark.parametrize(("lacking", "bf16"), [("training", "inference"), ("1", "no")])
def test_cpu_without_bf16_is_verified_without_it(gloo: Home, lacking: str, bf16: str) -> None:
    result = verified(gloo, variables={"TINY_NO_BF16": lacking})
    assert result.ok
    assert result.bf16 == bf16


def test_ipex_for_another_torch_is_explained(tmp_path: Path) -> None:
    home = Home.below(tmp_path, ipex=None, torch="2.13.0")
    home.wheels.append(home.add(write_ipex(tmp_path / "source", "2.8.0", python=home.wheels[0].filename.split("-")[2])))
    home.build()
    result = verified(home)
    assert phases(result) == {"torch": True, "ipex": False, "allreduce": True}
    assert missing(explanation(result), "2.8 2.13.0") == []


def test_bindings_for_another_torch_are_explained(tmp_path: Path) -> None:
    home = Home.below(tmp_path)
    tag = home.wheels[0].filename.split("-")[2]
    home.wheels.append(home.add(write_oneccl(tmp_path / "source", "2.7.0", python=tag)))
    home.build(record={"module": "oneccl_bindings_for_pytorch", "backend": "ccl"})
    result = verified(home)
    assert phases(result) == {"torch": True, "ipex": True, "bindings": False}
    assert missing(explanation(result), "oneCCL torch") == []


def test_environment_variables_of_the_caller_are_ignored(gloo: Home, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')\n")
    env = {"PATH": os.environ["PATH"], "HOME": "/", "PYTHONPATH": str(tmp_path), "RANK": "7", "TINY_CRASH": "import"}
    assert verified(gloo, env=env).ok


def test_foreign_environment_is_verified_with_a_setup_file(ccl: Home, tmp_path: Path) -> None:
    package = next(ccl.env.glob("lib/python*/site-packages/oneccl_bindings_for_pytorch"))
    setup, broken = tmp_path / "setup.sh", tmp_path / "broken.sh"
    setup.write_text(f". {package}/env/setvars.sh\n")
    broken.write_text("echo no such module >&2; false\n")

    def verify_with(path: Path) -> dict[str, Any]:
        asked = request(ccl, backend="auto", module=None, setup=str(path))
        return verify(ccl, {**asked, "variables": {}, "prepended": []})

    for path in (setup, package / "env" / "setvars.sh"):
        assert (reply := verify_with(path))["ok"]
        assert reply["backend"] == "ccl"
    assert "no such module" in verify_with(broken)["reason"]


def test_pythonpath_of_a_setup_file_is_used(gloo: Home, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('the torch of PYTHONPATH')\n")
    setup = tmp_path / "setup.sh"
    setup.write_text(f"export PYTHONPATH={tmp_path}\n")
    assert "the torch of PYTHONPATH" in failed_phase(verified(gloo, setup=str(setup))).text


def test_torch_cache_directory_is_removed(gloo: Home, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "import os\n"
        "cache = os.environ.get('TORCHINDUCTOR_CACHE_DIR') or f'{os.environ[\"TMPDIR\"]}/torchinductor'\n"
        "os.makedirs(cache, exist_ok=True)\n"
        "raise SystemExit('it was made: ' + str(os.path.isdir(cache)))\n"
    )
    temporary, setup = tmp_path / "temporary", tmp_path / "setup.sh"
    temporary.mkdir()
    setup.write_text(f"export PYTHONPATH={tmp_path}\n")
    env = {"PATH": os.environ["PATH"], "HOME": "/", "TMPDIR": str(temporary)}
    result = said(start("env.verify", "verify", request(gloo, setup=str(setup)), env=env))
    assert "it was made: True" in result["phases"][0]["text"]
    assert list(temporary.iterdir()) == []


def test_missing_python_is_an_error(gloo: Home) -> None:
    failed = said(start("env.verify", "verify", request(gloo, python="/nowhere/python")))
    assert "/nowhere/python" in failed["reason"]


def test_missing_required_ipex_is_reported(tmp_path: Path) -> None:
    home = Home.below(tmp_path, ipex=None)
    home.build()
    assert verified(home).ok
    assert missing(explanation(verified(home, ipex=True)), "IPEX intel_extension_for_pytorch") == []


def test_result_is_saved_in_the_environment(gloo: Home) -> None:
    note = gloo.env / "verified" / "m1.json"
    assert verified(gloo, keep=str(note)).ok
    assert json.loads(note.read_text())["torch"] == "2.8.0"
    assert gloo.envs("check", name=gloo.name)["verified"]["m1"]["ok"]
    assert not verified(gloo, keep=str(note), variables={"TINY_WRONG_SUM": "1"}).ok
    assert gloo.envs("check", name=gloo.name)["verified"]["m1"]["ok"] is False
