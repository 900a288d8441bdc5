"""Names that no index is asked for: those of the user's project, and those of which a named directory has wheels. The
index has a stranger's package of each name, newer than one's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lock_helpers import index, links, maker, plan, query

from cli_helpers import ipexctl
from ipexctl.errors import UserError
from ipexctl.node.env.lock import MAX_REQUIRED
from ipexctl.remote.outcome import HostError
from ipexctl.stack.lock.wheel_lock import Lock, find_named_wheels, make_lock
from ipexctl.stack.resolve.model import Sources
from message_data import missing
from simple_index import SimpleIndex
from tiny_wheels import write_stack, write_wheel

pytest_plugins = ["compiled_agent"]
pytestmark = pytest.mark.usefixtures("compiled_agent")


@pytest.fixture
def strangers(tmp_path: Path) -> Iterator[SimpleIndex]:
    wheels = tmp_path / "index"
    for name in ("tinylm", "core", "private"):
        write_wheel(wheels, name, "9.9")
    write_wheel(wheels, "torch", "2.8.0")
    write_wheel(wheels, "helper", "1.0", requires=["tinylm>=0.1", "private>=0.1", "leaf"])
    write_wheel(wheels, "leaf", "1.0")
    with SimpleIndex(wheels) as served:
        yield served


@pytest.fixture
def own(tmp_path: Path) -> Path:
    wheels = tmp_path / "own wheels"
    write_wheel(wheels, "private", "0.1")
    write_wheel(wheels, "private", "0.3", requires=["leaf"])
    write_wheel(wheels, "private", "0.2")
    return wheels


def asked(served: SimpleIndex) -> set[str]:
    """The projects and packages of which something was asked, but for what may be."""
    names = {line.rsplit("/", 1)[-1].partition("-")[0] or line.split("/")[-2] for line in served.requests}
    return names - {"torch", "helper", "leaf"}


def lock_with(
    tmp_path: Path, served: SimpleIndex, *extras: str, own: dict[str, str] | None = None, wheels: Path | None = None
) -> Lock:
    sources = Sources(find_links=(str(wheels),) if wheels else ())
    places = [index(served.url), *([links(str(wheels))] if wheels else [])]
    named = find_named_wheels(sources, plan(), ())
    return make_lock(maker(tmp_path), plan(), query(*places), packages=extras, own=own or {}, named=named)


def test_own_packages_are_met_without_an_index_and_are_not_locked(tmp_path: Path, strangers: SimpleIndex) -> None:
    lock = lock_with(tmp_path, strangers, "helper", own={"tinylm": "0.1.2", "private": "0+local"})
    assert lock.packages == {"helper": "1.0", "leaf": "1.0", "torch": "2.8.0"}
    assert asked(strangers) == set()


def test_a_package_of_a_named_directory_is_taken_from_there(tmp_path: Path, strangers: SimpleIndex, own: Path) -> None:
    lock = lock_with(tmp_path, strangers, "helper", "private", own={"tinylm": "1"}, wheels=own)
    assert lock.packages["private"] == "0.3"
    assert (
        lock_with(tmp_path, strangers, "helper", "private<0.3", own={"tinylm": "1"}, wheels=own).packages["private"]
        == "0.2"
    )
    assert asked(strangers) == set()


@pytest.mark.parametrize("requirement", ["private>=2", "private==9.9"])
def test_a_requirement_that_the_named_directory_does_not_fulfil_is_refused(
    tmp_path: Path, strangers: SimpleIndex, own: Path, requirement: str
) -> None:
    with pytest.raises(UserError) as caught:
        lock_with(tmp_path, strangers, requirement, wheels=own)
    assert missing(caught.value.message, f"{requirement} private 0.3 --find-links") == []
    assert asked(strangers) == set()


def test_limits_of_other_packages_count_too(tmp_path: Path, strangers: SimpleIndex, own: Path) -> None:
    write_wheel(strangers.directory, "strict", "1.0", requires=["private>=5"])
    with pytest.raises(UserError, match="private"):
        lock_with(tmp_path, strangers, "strict", wheels=own)
    assert asked(strangers) <= {"strict"}


def test_a_wheel_for_other_hosts_is_not_replaced_by_a_strangers(tmp_path: Path, strangers: SimpleIndex) -> None:
    wheels = tmp_path / "other"
    write_wheel(wheels, "private", "0.1", tag="cp39-cp39-manylinux_2_17_x86_64")
    with pytest.raises(UserError, match="other hosts"):
        lock_with(tmp_path, strangers, "private", wheels=wheels)
    assert asked(strangers) == set()


def test_a_wheel_that_requires_too_much_is_refused_at_once(tmp_path: Path, strangers: SimpleIndex, own: Path) -> None:
    write_wheel(own, "many", "1.0", requires=[f"p{number}" for number in range(MAX_REQUIRED + 1)])
    with pytest.raises(HostError, match=r"many-1\.0"):
        lock_with(tmp_path, strangers, "private", wheels=own)


PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
PROJECT = '[project]\nname = "tinylm"\nversion = "0.1"\ndependencies = ["helper", "core"]\n'


@pytest.mark.parametrize(
    "words",
    [
        ("install", "--dry-run", "-r", "pyproject.toml"),
        ("install", "--dry-run", "-r", "pyproject.toml[more]"),
        ("install", "--dry-run", "--extra", "more"),
        ("install", "--dry-run", "-r", "requirements.txt"),
        ("install", "--dry-run", "--with", "helper", "--find-links", "own"),
        ("install", "--dry-run", "--with", "helper", "--wheelhouse", "own"),
        ("install", "--dry-run", "--with", "tinylm"),
        ("run", "--install", "-n", "1", "src/start.py"),
    ],
)
def test_no_command_asks_an_index_for_the_projects_own_names(
    tmp_path: Path, strangers: SimpleIndex, words: tuple[str, ...]
) -> None:
    write_stack(strangers.directory, "2.13.0+cpu", None, None, PYTHON)
    project = tmp_path / "tinylm"
    for path in ("src/tinylm", "libs/core/core"):
        (project / path).mkdir(parents=True)
        (project / path / "__init__.py").touch()
    more = (
        '[project.optional-dependencies]\nmore = ["leaf", "tinylm"]\n[tool.uv.sources]\ncore = {path = "libs/core"}\n'
    )
    (project / "pyproject.toml").write_text(PROJECT + more)
    (project / "libs/core/pyproject.toml").write_text('[project]\nname = "core"\nversion = "1"\n')
    (project / "requirements.txt").write_text("-e .\ncore\ntinylm\nhelper\n")
    (project / "src/start.py").write_text("import tinylm, core\n")
    write_wheel(project / "own", "private", "0.1")
    env = {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("CACHE", "CONFIG")}
    env |= {"PIP_INDEX_URL": strangers.url, "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    place = ["--hosts", "localhost", "--home", str(tmp_path / "home")]
    done = ipexctl(words[0], *place, *words[1:], cwd=project, env=env, timeout=120)
    is_refused = "tinylm" in words
    assert (done.rc == 2) is is_refused, done.err
    assert any("/helper/" in line for line in strangers.requests) is not is_refused
    assert asked(strangers) & {"tinylm", "core"} == set()
