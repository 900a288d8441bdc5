"""Reading pylock.toml: the choice among several wheels, and their URLs."""

from __future__ import annotations

import pytest
from stack_helpers import index

from case_table import case_table
from ipexctl.node.env.env_replies import AvailableWheel, LocalWheel
from ipexctl.stack.lock.wheel_lock import NoWheel, platform_for, read_pylock
from ipexctl.stack.lock.wheels import Availability, Target


def lock(*wheels: str, name: str = "torch", version: str = "2.8.0") -> str:
    lines = ", ".join(
        f'{{ url = "https://host/{wheel}", hashes = {{ sha256 = "{n}" }} }}' for n, wheel in enumerate(wheels)
    )
    return f'lock-version = "1.0"\n[[packages]]\nname = "{name}"\nversion = "{version}"\nwheels = [{lines}]\n'


def taken(*wheels: str, python: str = "3.11", glibc: str = "2.31") -> str:
    (wheel,) = read_pylock(lock(*wheels), python, glibc, {})
    return wheel.filename


@case_table
def test_uv_platform_is_never_newer_than_the_glibc_of_the_hosts(glibc: str, platform: str) -> None:
    assert platform_for(glibc) == platform


def test_wheel_for_the_exact_python_is_preferred() -> None:
    mine = "torch-2.8.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert taken("torch-2.8.0-py3-none-any.whl", "torch-2.8.0-cp310-abi3-linux_x86_64.whl", mine) == mine


def test_wheel_of_the_newest_supported_platform_is_preferred() -> None:
    wheels = [f"torch-2.8.0-cp311-cp311-manylinux_2_{minor}_x86_64.whl" for minor in (17, 28, 39)]
    assert taken(*wheels) == wheels[1]
    assert taken(*wheels, glibc="2.17") == wheels[0]


def test_wheel_with_the_higher_build_number_is_preferred() -> None:
    first, second = (f"torch-2.8.0{build}-py3-none-manylinux1_x86_64.whl" for build in ("-2", "-10"))
    assert taken("torch-2.8.0-py3-none-manylinux1_x86_64.whl", first, second) == second


def test_no_wheel_is_raised_if_none_is_compatible() -> None:
    with pytest.raises(NoWheel, match="torch"):
        taken("torch-2.8.0-cp310-cp310-manylinux_2_28_x86_64.whl", "torch-2.8.0-py3-none-win_amd64.whl", "torch-x.whl")


def test_credentials_are_removed_from_lock_urls() -> None:
    text = lock("torch-2.8.0-py3-none-any.whl").replace("https://", "https://me:secret@")
    (wheel,) = read_pylock(text, "3.11", "2.31", {})
    assert wheel.url == "https://host/torch-2.8.0-py3-none-any.whl"


def test_wheel_on_disk_has_a_path_and_no_url() -> None:
    url = "https://host/torch-2.8.0-py3-none-any.whl"
    (wheel,) = read_pylock(lock("torch-2.8.0-py3-none-any.whl"), "3.11", "2.31", {url: LocalWheel("/w/t.whl", "ab", 7)})
    assert (wheel.url, wheel.path, wheel.sha256, wheel.size) == (None, "/w/t.whl", "ab", 7)


@pytest.mark.parametrize(
    ("published", "path"), [((), "/w/torch-2.8.0-py3-none-linux_x86_64.whl"), (("torch-2.8.0-py3-none-any.whl",), None)]
)
def test_wheel_built_from_the_source_is_read_only_if_none_is_published(
    published: tuple[str, ...], path: str | None
) -> None:
    source = "https://host/torch-2.8.0.tar.gz"
    text = lock(*published) + f'sdist = {{ url = "{source}", hashes = {{ sha256 = "cd" }} }}\n'
    built = LocalWheel("/w/torch-2.8.0-py3-none-linux_x86_64.whl", "ab", 7)
    (wheel,) = read_pylock(text, "3.11", "2.31", {source: built})
    assert wheel.path == path


def test_wheel_given_by_url_is_read() -> None:
    text = (
        'lock-version = "1.0"\n[[packages]]\nname = "Special_Thing"\n'
        'archive = { url = "https://host/special_thing-1.5-py3-none-any.whl", hashes = { sha256 = "ab" } }\n'
    )
    (wheel,) = read_pylock(text, "3.11", "2.31", {})
    assert (wheel.name, wheel.version, wheel.sha256) == ("special-thing", "1.5", "ab")


def test_local_versions_in_urls_are_decoded() -> None:
    text = lock("torch-2.8.0%2Bcpu-cp311-cp311-linux_x86_64.whl", version="2.8.0+cpu")
    (wheel,) = read_pylock(text, "3.11", "2.31", {})
    assert wheel.filename == "torch-2.8.0+cpu-cp311-cp311-linux_x86_64.whl"


# Compatibility of wheels with a Python and a glibc, by their names


@case_table
def test_wheel_tags_match_python_and_glibc(tags: str, python: str, glibc: str, runs: bool) -> None:
    found = index(f"torch-2.8.0-{tags}.whl").build("torch", "2.8.0", Target(python, glibc))
    assert (found is not None) == runs


def test_requires_python_is_respected_and_invalid_values_are_ignored() -> None:
    def with_rule(rule: str) -> Availability:
        wheel = AvailableWheel("torch", "2.8.0", "torch-2.8.0-py3-none-any.whl", "here", requires_python=rule)
        return Availability({"torch": (wheel,)})

    target = Target("3.9", "2.28")
    assert with_rule(">=3.9.0").build("torch", "2.8.0", target)
    assert with_rule(">=3.8,!=3.9.7").build("torch", "2.8.0", target)
    assert not with_rule(">=3.10").build("torch", "2.8.0", target)
    assert with_rule(">=three").build("torch", "2.8.0", target)


def test_versions_match_with_fewer_zeros_and_not_with_release_candidates() -> None:
    target = Target("3.9", "2.28")
    assert index("oneccl_bind_pt-1.13-cp39-cp39-linux_x86_64.whl").build("oneccl-bind-pt", "1.13.0", target)
    assert not index("torch-2.9.0rc1-cp39-cp39-linux_x86_64.whl").build("torch", "2.9.0", target)


def test_wheel_that_is_not_yanked_is_preferred() -> None:
    names = ("torch-2.8.0-cp39-cp39-linux_x86_64.whl!", "torch-2.8.0-cp39-cp39-manylinux1_x86_64.whl")
    found = index(*names).build("torch", "2.8.0", Target("3.9", "2.28"))
    assert found is not None
    assert not found.yanked


@case_table
def test_can_satisfy_checks_version_platform_and_yanked(wheel: str, requirement: str, there: bool) -> None:
    assert index(wheel).can_satisfy(requirement, Target("3.11", "2.28")) == there


def test_invalid_wheel_names_are_skipped() -> None:
    names = ("torch-2.8.0.tar.gz", "torch-2.8.0-cp311.whl", "torch-x.y-cp311-cp311-linux_x86_64.whl", "-")
    wheels = tuple(AvailableWheel("torch", "2.8.0", name, "here") for name in names)
    assert Availability({"torch": wheels}).build("torch", "2.8.0", Target("3.11", "2.28")) is None
