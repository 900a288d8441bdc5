"""Reading pylock.toml: which of several wheels is taken, and what of a URL stays."""

from __future__ import annotations

import pytest

from ipexctl.stack.lock.make_lock import NoWheel, platform_for, read_pylock


def lock(*wheels: str, name: str = "torch", version: str = "2.8.0") -> str:
    lines = ", ".join(
        f'{{ url = "https://host/{wheel}", hashes = {{ sha256 = "{n}" }} }}' for n, wheel in enumerate(wheels)
    )
    return f'lock-version = "1.0"\n[[packages]]\nname = "{name}"\nversion = "{version}"\nwheels = [{lines}]\n'


def taken(*wheels: str, python: str = "3.11", glibc: str = "2.31") -> str:
    (wheel,) = read_pylock(lock(*wheels), python, glibc, {})
    return wheel.filename


@pytest.mark.parametrize(
    ("glibc", "platform"),
    [
        ("2.17", "x86_64-manylinux_2_17"),
        ("2.27", "x86_64-manylinux_2_17"),
        ("2.28", "x86_64-manylinux_2_28"),
        ("2.30", "x86_64-manylinux_2_28"),
        ("2.36", "x86_64-manylinux_2_36"),
        ("2.41", "x86_64-manylinux_2_40"),
        ("2.12", "x86_64-manylinux_2_17"),
    ],
)
def test_uvs_platform_is_never_newer_than_the_hosts(glibc: str, platform: str) -> None:
    assert platform_for(glibc) == platform


def test_a_wheel_for_the_python_beats_one_for_any() -> None:
    mine = "torch-2.8.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert taken("torch-2.8.0-py3-none-any.whl", "torch-2.8.0-cp310-abi3-linux_x86_64.whl", mine) == mine


def test_the_newest_platform_the_hosts_run_wins() -> None:
    wheels = [f"torch-2.8.0-cp311-cp311-manylinux_2_{minor}_x86_64.whl" for minor in (17, 28, 39)]
    assert taken(*wheels) == wheels[1]
    assert taken(*wheels, glibc="2.17") == wheels[0]


def test_of_two_builds_the_later_wins() -> None:
    first, second = (f"torch-2.8.0{build}-py3-none-manylinux1_x86_64.whl" for build in ("-2", "-10"))
    assert taken("torch-2.8.0-py3-none-manylinux1_x86_64.whl", first, second) == second


def test_what_fits_nobody_is_no_wheel() -> None:
    with pytest.raises(NoWheel, match="torch"):
        taken("torch-2.8.0-cp310-cp310-manylinux_2_28_x86_64.whl", "torch-2.8.0-py3-none-win_amd64.whl", "torch-x.whl")


def test_credentials_do_not_reach_the_lock() -> None:
    text = lock("torch-2.8.0-py3-none-any.whl").replace("https://", "https://me:secret@")
    (wheel,) = read_pylock(text, "3.11", "2.31", {})
    assert wheel.url == "https://host/torch-2.8.0-py3-none-any.whl"


def test_a_file_on_disk_is_known_by_its_path() -> None:
    url = "https://host/torch-2.8.0-py3-none-any.whl"
    (wheel,) = read_pylock(
        lock("torch-2.8.0-py3-none-any.whl"), "3.11", "2.31", {url: {"path": "/w/t.whl", "sha256": "ab", "size": 7}}
    )
    assert (wheel.url, wheel.path, wheel.sha256, wheel.size) == (None, "/w/t.whl", "ab", 7)


def test_a_wheel_named_by_its_url_is_a_wheel_too() -> None:
    text = (
        'lock-version = "1.0"\n[[packages]]\nname = "Special_Thing"\n'
        'archive = { url = "https://host/special_thing-1.5-py3-none-any.whl", hashes = { sha256 = "ab" } }\n'
    )
    (wheel,) = read_pylock(text, "3.11", "2.31", {})
    assert (wheel.name, wheel.version, wheel.sha256) == ("special-thing", "1.5", "ab")


def test_local_versions_and_names_are_as_people_write_them() -> None:
    text = lock("torch-2.8.0%2Bcpu-cp311-cp311-linux_x86_64.whl", version="2.8.0+cpu")
    (wheel,) = read_pylock(text, "3.11", "2.31", {})
    assert wheel.filename == "torch-2.8.0+cpu-cp311-cp311-linux_x86_64.whl"
