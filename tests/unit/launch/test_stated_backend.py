"""The backend that arguments and accelerate's file state: it decides under auto, or a note says what the ranks get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from launch_helpers import IPEX, STOCK, cpu, machine, plan, value

from ipexctl.launch.accelerate_env import no_optimize
from ipexctl.launch.overrides import stated_backend
from ipexctl.launch.spec import AccelerateConfig
from ipexctl.node.common.plan import Plan
from message_data import missing

ONE_CORE = (machine(cpu(1, threads=1), 1), machine(cpu(1, threads=1), 2))
"""Over ccl a single core per rank is slower than over gloo, so that `auto` takes gloo by itself."""
MANY = (machine(cpu(8), 1), machine(cpu(8), 2))
CCL: dict[str, Any] = {"command": ("train.py", "--ddp_backend", "ccl")}
GLOO: dict[str, Any] = {"command": ("train.py", "--ddp_backend=gloo")}
FILE: dict[str, Any] = {"accelerate": AccelerateConfig("c.yaml", ccl_workers=1)}


def made(*machines: Any, env: Any = IPEX, **options: Any) -> Plan:
    return plan(*machines, env=env, uses_accelerate=True, **options)


def with_packages(**versions: str) -> Any:
    return replace(IPEX, packages={**IPEX.packages, **versions})


@pytest.mark.parametrize(
    ("argv", "backend"),
    [
        (["--bf16", "--ddp_backend", "ccl"], "ccl"),
        (["--ddp-backend=ccl"], "ccl"),
        (["--xpu_backend", "ccl"], "ccl"),
        (["--ddp_backend", "mpi"], "mpi"),
        (["--ddp_backend", "nccl"], None),
        (["--ddp_backend"], None),
        (["ccl"], None),
    ],
)
def test_backend_is_read_from_the_arguments_of_the_trainer(argv: list[str], backend: str | None) -> None:
    found = stated_backend(argv, None)
    assert (found.backend if found else None) == backend


def test_arguments_come_before_the_file_and_zero_workers_are_no_statement() -> None:
    config = AccelerateConfig("c.yaml", ccl_workers=2)
    assert stated_backend(["--ddp_backend", "gloo"], config) == stated_backend(["--ddp_backend=gloo"], None)
    found = stated_backend([], config)
    assert found is not None
    assert (found.backend, found.source) == ("ccl", "mpirun_ccl 2 of c.yaml")
    assert stated_backend([], AccelerateConfig("c.yaml", ccl_workers=0)) is None


@pytest.mark.parametrize(("stated", "source"), [(CCL, "--ddp_backend ccl"), (FILE, "mpirun_ccl 1 of c.yaml")])
def test_stated_ccl_decides_where_the_environment_has_the_bindings(stated: dict[str, Any], source: str) -> None:
    assert made(*ONE_CORE, ppn=1).backend == "gloo"
    found = made(*ONE_CORE, ppn=1, **stated)
    assert found.backend == "ccl"
    assert value(found, "CCL_WORKER_COUNT") == "1"
    assert not any(source in note for note in found.notes)
    assert any(source in choice for choice in found.choices)


def test_stated_gloo_decides_too() -> None:
    found = made(*MANY, **GLOO)
    assert (found.backend, value(found, "CCL_WORKER_COUNT")) == ("gloo", None)
    assert not any("--ddp_backend" in note for note in found.notes)


@pytest.mark.parametrize(
    ("env", "options", "stated", "words"),
    [
        (STOCK, {}, CCL, "--ddp_backend_ccl:_the_ranks_get_gloo no_oneCCL_bindings --ddp_backend_gloo"),
        (STOCK, {}, CCL, "ipexctl_install_--require-oneccl"),
        (STOCK, {}, FILE, "mpirun_ccl_1_of_c.yaml:_the_ranks_get_gloo mpirun_ccl:_'0'_in_c.yaml"),
        (IPEX, {"backend": "gloo"}, CCL, "the_ranks_get_gloo --backend_gloo"),
        (IPEX, {"backend": "ccl"}, GLOO, "the_ranks_get_ccl --backend_ccl"),
        (with_packages(accelerate="1.13.0"), {}, FILE, "the_ranks_get_gloo 1.13.0 --with_accelerate==1.12.0"),
        (with_packages(transformers="5.1.0"), {}, CCL, "transformers_5.1.0_refuses_ccl --with_transformers==5.0.0"),
        (STOCK, {}, {"command": ("train.py", "--ddp_backend", "mpi")}, "no_wheel_of_torch --ddp_backend_gloo"),
    ],
)
def test_note_says_what_the_ranks_get_why_and_what_to_type(
    env: Any, options: dict[str, Any], stated: dict[str, Any], words: str
) -> None:
    found = made(*MANY, **stated, env=env, **options)
    assert found.notes, "no note"
    assert [word for word in words.split() if word.replace("_", " ") not in found.notes[0].replace("_", " ")] == []


@pytest.mark.parametrize(
    "env", [with_packages(accelerate="1.12.0"), with_packages(accelerate="1.12.0", transformers="5.0.0"), IPEX]
)
def test_no_note_for_the_last_versions_with_oneccl(env: Any) -> None:
    found = made(*MANY, **CCL, env=env)
    assert (found.backend, [note for note in found.notes if "ddp_backend" in note]) == ("ccl", [])


def test_accelerate_without_oneccl_gets_the_plan_of_gloo_and_a_note() -> None:
    new = with_packages(accelerate="1.13.0")
    found = made(*MANY, env=new)
    assert found.backend == "gloo"
    assert missing(found.notes[0], "gloo accelerate 1.13.0 1.12.0") == []
    other = plan(*MANY, env=new)  # a script that is not known to use accelerate
    assert other.backend == "ccl"
    assert made(*MANY, env=new, backend="ccl").backend == "ccl"


def test_a_single_rank_is_not_told_of_a_backend() -> None:
    assert not any("ddp_backend" in note for note in made(MANY[0], **CCL, env=STOCK, n=1).notes)


@pytest.mark.parametrize(
    ("versions", "does_nothing"),
    [
        ({"accelerate": "1.7.0", "torch": "2.8.0"}, False),
        ({"accelerate": "1.8.1", "torch": "2.6.0"}, False),
        ({"accelerate": "1.12.0", "torch": "2.6.0+cpu"}, False),
        ({"accelerate": "1.8.1", "torch": "2.7.0"}, True),
        ({"accelerate": "1.12.0", "torch": "2.8.0"}, True),
        ({"accelerate": "1.13.0", "torch": "2.6.0"}, True),
    ],
)
def test_ipex_note_checks_accelerate_and_torch(versions: dict[str, str], *, does_nothing: bool) -> None:
    note = no_optimize({"intel-extension-for-pytorch": "2.6.0", **versions}, "--use_ipex")
    assert bool(note) == does_nothing
    if does_nothing:
        assert missing(note, f"--use_ipex {versions['accelerate']} ipex.optimize") == []
