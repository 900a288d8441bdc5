"""Compatibility of wheels with a Python and a glibc, by their names."""

from __future__ import annotations

import pytest
from stack_helpers import index

from ipexctl.stack.lock.wheels import Availability, Candidate, Target


@pytest.mark.parametrize(
    ("tags", "python", "glibc", "runs"),
    [
        ("cp311-cp311-manylinux_2_28_x86_64", "3.11", "2.28", True),
        ("cp311-cp311-manylinux_2_28_x86_64", "3.11", "2.27", False),
        ("cp311-cp311-manylinux_2_28_x86_64", "3.12", "2.28", False),
        ("cp311-cp311-manylinux1_x86_64", "3.11", "2.17", True),
        ("cp311-cp311-manylinux2010_x86_64", "3.11", "2.17", True),
        ("cp311-cp311-manylinux2014_x86_64", "3.11", "2.17", True),
        ("cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64", "3.11", "2.17", True),
        ("cp311-cp311-linux_x86_64", "3.11", "2.17", True),
        ("cp311-cp311-manylinux_2_28_aarch64", "3.11", "2.36", False),
        ("cp311-cp311-musllinux_1_2_x86_64", "3.11", "2.36", False),
        ("cp311-cp311-win_amd64", "3.11", "2.36", False),
        ("cp311-cp311-macosx_11_0_arm64", "3.11", "2.36", False),
        ("cp37-cp37m-manylinux1_x86_64", "3.7", "2.17", True),
        ("cp39-abi3-manylinux_2_28_x86_64", "3.12", "2.28", True),
        ("cp39-abi3-manylinux_2_28_x86_64", "3.8", "2.28", False),
        ("cp310-abi3-manylinux_2_28_x86_64", "3.9", "2.28", False),
        ("py3-none-any", "3.15", "2.17", True),
        ("py2.py3-none-manylinux1_x86_64", "3.8", "2.17", True),
        ("py310-none-any", "3.9", "2.17", False),
        ("py310-none-any", "3.10", "2.17", True),
        ("py2-none-any", "3.10", "2.17", False),
        ("cp313-cp313t-manylinux_2_28_x86_64", "3.13", "2.28", False),
        ("pp310-pypy310_pp73-manylinux_2_28_x86_64", "3.10", "2.28", False),
    ],
)
def test_tags(tags: str, python: str, glibc: str, runs: bool) -> None:
    found = index(f"torch-2.8.0-{tags}.whl").build("torch", "2.8.0", Target(python, glibc))
    assert (found is not None) == runs


def test_requires_python_is_obeyed_and_nonsense_in_it_is_not() -> None:
    def with_rule(rule: str) -> Availability:
        wheel = Candidate("torch", "2.8.0", "torch-2.8.0-py3-none-any.whl", "here", requires_python=rule)
        return Availability({"torch": (wheel,)})

    target = Target("3.9", "2.28")
    assert with_rule(">=3.9.0").build("torch", "2.8.0", target)
    assert with_rule(">=3.8,!=3.9.7").build("torch", "2.8.0", target)
    assert not with_rule(">=3.10").build("torch", "2.8.0", target)
    assert with_rule(">=three").build("torch", "2.8.0", target)


def test_a_version_is_the_same_with_fewer_zeros_and_no_release_is_its_candidate() -> None:
    target = Target("3.9", "2.28")
    assert index("oneccl_bind_pt-1.13-cp39-cp39-linux_x86_64.whl").build("oneccl-bind-pt", "1.13.0", target)
    assert not index("torch-2.9.0rc1-cp39-cp39-linux_x86_64.whl").build("torch", "2.9.0", target)


def test_a_wheel_that_is_not_withdrawn_comes_first() -> None:
    names = ("torch-2.8.0-cp39-cp39-linux_x86_64.whl!", "torch-2.8.0-cp39-cp39-manylinux1_x86_64.whl")
    found = index(*names).build("torch", "2.8.0", Target("3.9", "2.28"))
    assert found is not None
    assert not found.yanked


@pytest.mark.parametrize(
    ("wheel", "requirement", "there"),
    [
        ("impi_rt-2021.18.0-py2.py3-none-manylinux_2_28_x86_64.whl", "impi-rt>=2021.14,<2021.19", True),
        ("impi_rt-2021.19.0-py2.py3-none-manylinux_2_28_x86_64.whl", "impi-rt>=2021.14,<2021.19", False),
        ("impi_rt-2021.18.0-py2.py3-none-manylinux_2_28_x86_64.whl!", "impi-rt>=2021.14,<2021.19", False),
        ("impi_rt-2021.18.0-py2.py3-none-manylinux_2_34_x86_64.whl", "impi-rt>=2021.14,<2021.19", False),
        ("impi_rt-2021.18.0-py2.py3-none-win_amd64.whl", "impi-rt>=2021.14,<2021.19", False),
        ("intel_openmp-2024.1.2-py2.py3-none-manylinux1_x86_64.whl!", "intel-openmp==2024.1.2", True),
        ("intel_openmp-2024.1.2-py2.py3-none-manylinux1_x86_64.whl!", "intel-openmp==2024.*", False),
    ],
)
def test_requirements(wheel: str, requirement: str, there: bool) -> None:
    assert index(wheel).can_satisfy(requirement, Target("3.11", "2.28")) == there


def test_names_that_are_no_wheels_are_passed_over() -> None:
    names = ("torch-2.8.0.tar.gz", "torch-2.8.0-cp311.whl", "torch-x.y-cp311-cp311-linux_x86_64.whl", "-")
    wheels = tuple(Candidate("torch", "2.8.0", name, "here") for name in names)
    assert Availability({"torch": wheels}).build("torch", "2.8.0", Target("3.11", "2.28")) is None
