"""Locks made by the real uv, from a local test index."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
import threading
import urllib.request
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from lock_helpers import LOCAL_SESSION, answer_of, index, links, maker, plan, query

from agent_helpers import all_pythons
from fakes import FakeSession
from ipexctl.errors import UserError
from ipexctl.hosts.host import Host
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.http import HttpClient
from ipexctl.node.common.processes import partial_name
from ipexctl.node.env.env_replies import AvailableWheel, PipSettings, SourceFailure
from ipexctl.node.env.lock import SourceArchive, download
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import MalformedReply
from ipexctl.stack.lock import wheel_indexes
from ipexctl.stack.lock.wheel_indexes import PYPI_SOURCE, IndexAnswer, query_indexes, sources_for
from ipexctl.stack.lock.wheel_lock import BuiltPackage, Lock, LockMaker, Wheel, make_lock, uv_for_node
from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.model import Sources
from message_data import missing
from simple_index import SimpleIndex
from tiny_wheels import write_wheel

pytest_plugins = ["compiled_agent"]
pytestmark = pytest.mark.usefixtures("compiled_agent")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheels")
    for version, tag in (
        ("2.8.0", "cp311-cp311-manylinux_2_28_x86_64"),
        ("2.8.0+cpu", "cp311-cp311-linux_x86_64"),
        ("2.9.0", "cp311-cp311-manylinux_2_28_x86_64"),
    ):
        write_wheel(place, "torch", version, tag=tag, requires=["small"])
    write_wheel(place, "small", "1.0")
    write_wheel(place, "small", "2.0")
    write_wheel(place, "small", "3.0rc1")
    write_wheel(place, "peft", "1.0", requires=["torch>=2.9"])
    write_wheel(place, "needy", "1.0", requires=["missing-thing>=2.6"])
    write_wheel(place, "old", "1.0", tag="cp39-cp39-manylinux_2_17_x86_64")
    write_wheel(place, "modern", "1.0", tag="cp311-cp311-manylinux_2_39_x86_64")
    return place


@pytest.fixture(scope="module")
def found(wheels: Path) -> IndexAnswer:
    """What a query of the directory of wheels answers."""
    return query(links(str(wheels)))


def named(lock: Lock) -> dict[str, str]:
    return {wheel.name: wheel.filename for wheel in lock.wheels}


def refused(*, home: Path, answered: IndexAnswer, **more: object) -> str:
    with pytest.raises((HostError, UserError)) as caught:
        make_lock(maker(home), plan("torch==2.8.0+cpu"), answered, **more)  # type: ignore[arg-type]
    assert list((home / "tmp").iterdir()) == []
    return str(caught.value)


@pytest.mark.core
def test_lock_has_hash_size_and_url_of_each_wheel(wheels: Path, tmp_path: Path) -> None:
    with SimpleIndex(wheels) as served:
        lock = make_lock(maker(tmp_path), plan("torch==2.8.0+cpu", constraints=("small<2",)), query(index(served.url)))
    file = wheels / "torch-2.8.0+cpu-cp311-cp311-linux_x86_64.whl"
    assert named(lock) == {"small": "small-1.0-py3-none-any.whl", "torch": file.name}
    torch = lock.wheels[1]
    assert torch == Wheel(
        "torch",
        "2.8.0+cpu",
        file.name,
        hashlib.sha256(file.read_bytes()).hexdigest(),
        file.stat().st_size,
        served.file_url(file.name),
    )


def test_a_lock_is_made_under_any_python_of_a_node(wheels: Path, tmp_path: Path) -> None:
    with SimpleIndex(wheels, sizes=False, json=False) as served:
        answered = query(index(served.url))
        for python in all_pythons():
            made_by = LockMaker(LOCAL_SESSION, python, str(tmp_path), maker(tmp_path).uv)
            lock = make_lock(made_by, plan(), answered)
            assert lock.packages == {"torch": "2.8.0+cpu", "small": "2.0"}, python
            assert None not in [wheel.size for wheel in lock.wheels], python


def test_making_a_lock_leaves_no_files(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with SimpleIndex(wheels) as served, SimpleIndex(wheels, errors={"small": 403}) as refusing:
        make_lock(maker(tmp_path), plan(), query(index(refusing.url), index(served.url)))  # uv looks for a login
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["tmp"]
    assert tmp_path.joinpath("tmp").stat().st_mode & 0o777 == 0o700


def test_temporary_files_of_a_running_command_are_kept(found: IndexAnswer, tmp_path: Path) -> None:
    live = tmp_path / "tmp" / partial_name("lock")
    live.mkdir(parents=True)
    make_lock(maker(tmp_path), plan(), found)
    assert list((tmp_path / "tmp").iterdir()) == [live]


@pytest.mark.parametrize("json", [True, False])
def test_missing_sizes_are_queried_from_the_index(wheels: Path, tmp_path: Path, json: bool) -> None:
    with SimpleIndex(wheels, sizes=False, json=json, heads=not json) as served:
        lock = make_lock(maker(tmp_path), plan(), query(index(served.url)))
    assert [wheel.size for wheel in lock.wheels] == [(wheels / wheel.filename).stat().st_size for wheel in lock.wheels]


def test_index_without_hashes_gives_a_lock_with_hashes(wheels: Path, tmp_path: Path) -> None:
    with SimpleIndex(wheels, hashes=False, sizes=False) as served:
        lock = make_lock(maker(tmp_path), plan(), query(index(served.url)))
    for wheel in lock.wheels:
        assert wheel.sha256 == hashlib.sha256((wheels / wheel.filename).read_bytes()).hexdigest()


def test_wheels_of_a_directory_have_a_path_and_no_url(wheels: Path, found: IndexAnswer, tmp_path: Path) -> None:
    lock = make_lock(maker(tmp_path), plan(), found)
    assert [wheel.url for wheel in lock.wheels] == [None, None]
    for wheel in lock.wheels:
        assert wheel.path == str(wheels / wheel.filename)
        assert wheel.sha256 == hashlib.sha256(Path(wheel.path).read_bytes()).hexdigest()
        assert wheel.size == Path(wheel.path).stat().st_size


def test_a_lock_from_a_directory_unpacks_no_wheel(tmp_path: Path) -> None:
    """Before, uv unpacked each wheel of a directory to hash it: gigabytes and minutes for a dry run."""
    directory, used = tmp_path / "wheels", tmp_path / "used"
    write_wheel(directory, "torch", "2.8.0", tag="cp311-cp311-linux_x86_64", requires=["small"], pad=20_000_000)
    write_wheel(directory, "small", "1.0", pad=20_000_000)
    real, uv = maker(tmp_path).uv, tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\n{real} "$@"\ncode=$?\ndu -sb "$TMPDIR" >{used}\nexit $code\n')
    uv.chmod(0o755)
    lock = make_lock(replace(maker(tmp_path), uv=str(uv)), plan(), query(links(str(directory))))
    assert lock.packages == {"torch": "2.8.0", "small": "1.0"}
    assert lock.size > 40_000_000
    assert int(used.read_text().split()[0]) < 1_000_000


def test_a_damaged_wheel_of_a_directory_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "wheels"
    file = write_wheel(directory, "torch", "2.8.0", tag="cp311-cp311-linux_x86_64")
    file.write_bytes(file.read_bytes()[:100])
    message = refused(home=tmp_path / "home", answered=query(links(str(directory))))
    assert missing(message, "torch==2.8.0") == []
    assert "/home/" not in message


def test_directory_names_may_have_special_characters(tmp_path: Path) -> None:
    names = {"torch": "with,comma", "small": "a#b", "one": "a?b", "two": "100%20", "three": "plain ü"}
    for wheel, name in names.items():
        write_wheel(tmp_path / name, wheel, "2.8.0", requires=["small", "one", "two", "three"] * (wheel == "torch"))
    places = [tmp_path / name for name in names.values()]
    for words in ([str(place) for place in places], [place.as_uri() for place in places]):
        lock = make_lock(maker(tmp_path / "home"), plan(), query(*(links(word, word) for word in words)))
        assert {wheel.name: Path(str(wheel.path)).parent.name for wheel in lock.wheels} == names


def test_lock_from_an_index_with_a_file_url(wheels: Path, tmp_path: Path) -> None:
    for file in wheels.glob("*.whl"):
        page = tmp_path / "simple" / file.name.partition("-")[0] / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        with page.open("a") as target:
            target.write(f'<a href="{file.as_uri().replace("+", "%2B")}">{file.name}</a>\n')
    source = index((tmp_path / "simple").as_uri())
    lock = make_lock(maker(tmp_path / "home"), plan(), query(source))
    assert {wheel.path for wheel in lock.wheels} == {str(wheels / name) for name in named(lock).values()}


def test_credentials_are_used_and_not_written_to_the_lock(wheels: Path, tmp_path: Path) -> None:
    with SimpleIndex(wheels, login=("me", "p@ss:w/rd, x"), sizes=False) as served:
        for source in (index(served.url_with_login), links(served.url_with_login.replace("/simple", "/links/"))):
            answered = query(source)
            lock = make_lock(maker(tmp_path), plan(), answered)
            assert [wheel.url for wheel in lock.wheels] == [served.file_url(name) for name in named(lock).values()]
            assert None not in [wheel.size for wheel in lock.wheels]
            assert "Authorization" in answered.headers_for(str(lock.wheels[0].url))


@pytest.fixture
def private_and_public(wheels: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A private index with acme 1.0, and a public one with acme 9.9 and everything else."""
    private, public = tmp_path / "private", tmp_path / "public"
    shutil.copytree(wheels, public)
    write_wheel(private, "acme", "1.0")
    write_wheel(public, "acme", "9.9")
    write_wheel(public, "uses-acme", "1.0", requires=["acme"])
    return private, public


@pytest.mark.parametrize("option", ["extra_index_urls", "pip", "index_url"])
def test_private_index_takes_precedence_for_its_packages(
    option: str, private_and_public: tuple[Path, Path], tmp_path: Path
) -> None:
    with SimpleIndex(private_and_public[0]) as private, SimpleIndex(private_and_public[1]) as public:
        if option == "index_url":
            call, settings = Sources(index_url=public.url, extra_index_urls=(private.url,)), PipSettings()
        elif option == "pip":
            call, settings = Sources(), PipSettings(index_url=public.url, extra_index_urls=(private.url,))
        else:
            call, settings = Sources(extra_index_urls=(private.url,)), PipSettings(index_url=public.url)
        sources = sources_for(call, settings, besides=())
        answer = query_indexes(LOCAL_SESSION, sys.executable, sources, ["torch", "acme"], settings)
        lock = make_lock(maker(tmp_path), plan("torch==2.8.0"), answer, packages=["uses-acme"])
    assert lock.packages == {"acme": "1.0", "small": "2.0", "torch": "2.8.0+cpu", "uses-acme": "1.0"}
    assert {candidate.source for candidate in answer.availability.of("acme") if candidate.version == "1.0"} == {
        private.url
    }


def test_version_missing_in_the_first_index_is_taken_from_a_later_one(
    private_and_public: tuple[Path, Path], tmp_path: Path
) -> None:
    with SimpleIndex(private_and_public[0]) as private, SimpleIndex(private_and_public[1]) as public:
        answer = query(index(private.url, "private"), index(public.url, "public"))
        lock = make_lock(maker(tmp_path), plan("torch==2.8.0"), answer, packages=["acme>=2"])
    assert lock.packages["acme"] == "9.9"


def test_pytorch_index_supplies_torch_and_no_other_package(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel_indexes, "_STACK_HOSTS", {"127.0.0.2"})
    pytorch, public = tmp_path / "pytorch", tmp_path / "public"
    shutil.copytree(wheels, public)
    pytorch.mkdir()
    (public / "torch-2.8.0+cpu-cp311-cp311-linux_x86_64.whl").rename(
        pytorch / "torch-2.8.0+cpu-cp311-cp311-linux_x86_64.whl"
    )
    write_wheel(pytorch, "small", "9.9")
    with SimpleIndex(pytorch, bind="127.0.0.2") as stacks, SimpleIndex(public) as served:
        answer = query(index(served.url, "PyPI"), index(stacks.url, "PyTorch"))
        lock = make_lock(maker(tmp_path), plan("torch==2.8.0+cpu"), answer)
    assert lock.packages == {"torch": "2.8.0+cpu", "small": "2.0"}


@pytest.mark.parametrize("kind", ["binary", "wheel"])
def test_uv_from_the_store_makes_a_lock(found: IndexAnswer, tmp_path: Path, kind: str) -> None:
    uv = uv_for_node(None, "2.31", Sources())
    assert uv.path is not None
    if kind == "wheel":
        made = write_wheel(tmp_path, "uv", "9.9", scripts={"uv": ""})
        made.unlink()
        with zipfile.ZipFile(made, "w") as archive:
            archive.write(uv.path, "uv-9.9.data/scripts/uv")
        uv = Wheel("uv", "", made.name, hashlib.sha256(made.read_bytes()).hexdigest(), path=str(made))
    kept = tmp_path / "home" / "wheels" / uv.sha256 / uv.filename
    kept.parent.mkdir(parents=True)
    shutil.copyfile(str(uv.path), kept)
    made_by = LockMaker(LOCAL_SESSION, sys.executable, str(tmp_path / "home"), uv)
    assert make_lock(made_by, plan(), found).packages["torch"] == "2.8.0+cpu"
    assert not list((tmp_path / "home" / "tmp").iterdir())


def test_the_newest_usable_uv_of_the_indexes_is_taken() -> None:
    manylinux = "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    files: dict[str, dict[str, Any]] = {
        f"uv-0.14.0-{manylinux}": {},
        f"uv-0.15.0-{manylinux}": {"yanked": True},
        f"uv-0.16.0rc1-{manylinux}": {},
        "uv-0.17.0-py3-none-manylinux_2_28_x86_64.whl": {},
        "uv-0.18.0-py3-none-linux_armv6l.whl": {},
        f"uv-0.9.0-{manylinux}": {},
        f"uv-0.19.0-{manylinux}": {"sha256": None},
        f"uv-0.20.0-{manylinux}": {"url": f"file:///mnt/uv-0.20.0-{manylinux}"},
        f"uv-0.21.0-{manylinux}": {"url": None},
    }
    have = Availability(
        {
            "uv": tuple(
                AvailableWheel(
                    "uv", name.split("-")[1], name, "an index", **{"url": f"https://x/{name}", "sha256": "ab", **more}
                )
                for name, more in files.items()
            )
        }
    )
    assert uv_for_node(have, "2.17", Sources()) == Wheel(
        "uv", "0.14.0", f"uv-0.14.0-{manylinux}", "ab", None, f"https://x/uv-0.14.0-{manylinux}"
    )


def test_control_machine_of_another_architecture_needs_uv_from_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(HostError, match="no index has uv"):
        uv_for_node(None, "2.17", Sources())


@pytest.mark.parametrize("machine", [("linux", "aarch64"), ("darwin", "arm64"), ("darwin", "x86_64")])
def test_control_machine_of_another_kind_takes_uv_for_the_hosts_from_a_named_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: tuple[str, str]
) -> None:
    monkeypatch.setattr("sys.platform", machine[0])
    monkeypatch.setattr("platform.machine", lambda: machine[1])
    for version, tag in (("0.14.0", "x86_64"), ("0.15.0", "x86_64"), ("0.16.0", "aarch64"), ("0.9.0", "x86_64")):
        write_wheel(tmp_path, "uv", version, tag=f"py3-none-manylinux_2_17_{tag}")
    for sources in (Sources(wheelhouse=str(tmp_path)), Sources(find_links=(f"file://{tmp_path}",))):
        uv = uv_for_node(None, "2.17", sources)
        assert (uv.version, uv.path) == ("0.15.0", str(tmp_path / uv.filename))
        assert uv.sha256 == hashlib.sha256((tmp_path / uv.filename).read_bytes()).hexdigest()


def test_lock_without_any_source_reports_each_failure(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"PyPI.*REASON"):
        make_lock(maker(tmp_path), plan(), answer_of(failures=(SourceFailure("PyPI", "REASON"),)))


def test_package_that_needs_another_torch_is_a_user_error(found: IndexAnswer, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        make_lock(
            maker(tmp_path),
            plan("torch==2.8.0+cpu"),
            found,
            packages=["peft"],
            origins={"peft": "requirements.txt:3"},
        )
    assert missing(str(caught.value), "peft requirements.txt:3 torch>=2.9 ipex-2.8 torch==2.8.0+cpu") == []


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("torch==2.6", "torch==2.6 --with ipex-2.8 torch==2.8.0+cpu"),
        ("old", "old==1.0 --with 3.11 cp39"),
        ("modern", "modern==1.0 --with x86_64 2.31"),
        ("absent", "absent --with"),
        ("small>=4", "small>=4 --with"),
        ("small==1.5", "small==1.5 --with"),
        ("needy", "missing-thing>=2.6 needy --with"),
    ],
)
def test_unsatisfiable_extras_are_explained(found: IndexAnswer, tmp_path: Path, extra: str, said: str) -> None:
    assert missing(refused(home=tmp_path, answered=found, packages=[extra]), said) == []


def test_many_versions_without_a_wheel_are_reported_briefly(wheels: Path, tmp_path: Path) -> None:
    for version in ("1.0", "1.1", "1.2", "1.3", "2.0"):
        write_wheel(tmp_path / "w", "numbers", version, tag="cp39-cp39-manylinux_2_17_x86_64")
    said = refused(
        home=tmp_path, answered=query(links(str(wheels)), links(str(tmp_path / "w"))), packages=["numbers<2"]
    )
    assert missing(said, "numbers<2 --with 3.11 2.31") == []
    assert len(said.splitlines()) < 15


def test_prerelease_is_used_only_if_requested_by_version(found: IndexAnswer, tmp_path: Path) -> None:
    assert make_lock(maker(tmp_path), plan(), found).packages["small"] == "2.0"
    assert make_lock(maker(tmp_path), plan(), found, packages=["small==3.0rc1"]).packages["small"] == "3.0rc1"


def test_what_was_built_before_keeps_its_wheel_and_brings_what_it_requires(found: IndexAnswer, tmp_path: Path) -> None:
    wheel = Wheel("built", "1.0", "built-1.0-py3-none-any.whl", "f" * 64, 9)
    kept = [BuiltPackage(wheel, ("small<2",))]
    lock = make_lock(maker(tmp_path), plan(), found, packages=["built"], kept=kept)
    assert (wheel in lock.wheels, lock.packages["small"]) == (True, "1.0")
    assert "built>1" in refused(home=tmp_path, answered=found, packages=["built>1"], kept=kept)


def test_prerelease_of_a_package_without_a_release_is_used(wheels: Path, tmp_path: Path) -> None:
    """mlflow 3 and wandb 0.31 have such dependencies: without them, an mlflow two years older was locked."""
    place = tmp_path / "w"
    for version, requires in (("2.13", []), ("3.17", ["conventions==0.66b2", "small>=1"])):
        write_wheel(place, "tracker", version, requires=requires)
    for version in ("0.66b1", "0.66b2"):
        write_wheel(place, "conventions", version)
    answered = query(links(str(wheels)), links(str(place)))
    packages = make_lock(maker(tmp_path), plan(), answered, packages=["tracker"]).packages
    assert (packages["tracker"], packages["conventions"], packages["small"]) == ("3.17", "0.66b2", "2.0")


def test_yanked_wheel_is_used_only_if_requested_by_version(wheels: Path, tmp_path: Path) -> None:
    with SimpleIndex(wheels, yanked={"small-2.0-py3-none-any.whl"}) as served:
        answered = query(index(served.url))
        assert make_lock(maker(tmp_path), plan(), answered).packages["small"] == "1.0"
        assert make_lock(maker(tmp_path), plan(), answered, packages=["small==2.0"]).packages["small"] == "2.0"


def test_index_that_becomes_unreachable_is_named(wheels: Path, tmp_path: Path) -> None:
    with SimpleIndex(wheels) as served:
        answered = query(index(served.url, "the mirror"))
    assert missing(refused(home=tmp_path, answered=answered), "the mirror refused") == []


def test_server_error_of_an_index_is_reported(wheels: Path, tmp_path: Path) -> None:
    with SimpleIndex(wheels, errors={"small": 500}) as served:
        said = refused(home=tmp_path, answered=query(index(served.url)))
    assert missing(said, "500 Internal Server Error") == []


def test_package_with_status_403_is_searched_in_the_next_index(wheels: Path, tmp_path: Path) -> None:
    with SimpleIndex(wheels) as whole, SimpleIndex(wheels, errors={"small": 403}) as store:
        lock = make_lock(maker(tmp_path), plan(), query(index(store.url, "store"), index(whole.url, "whole")))
    assert lock.wheels[0].url == whole.file_url("small-2.0-py3-none-any.whl")


def test_unwritable_home_is_named(found: IndexAnswer) -> None:
    with pytest.raises(HostError, match="/proc/nowhere"):
        make_lock(maker(Path("/proc/nowhere")), plan(), found)


@pytest.fixture(scope="module")
def pypi() -> IndexAnswer:
    try:
        urllib.request.urlopen("https://pypi.org/simple/typing-extensions/", timeout=4).close()
    except OSError:
        pytest.skip("PyPI can't be reached")
    projects = ["torch", "intel-extension-for-pytorch"]
    answered = query_indexes(LOCAL_SESSION, sys.executable, [PYPI_SOURCE], projects, PipSettings())
    if not answered.sources:
        pytest.skip("PyPI doesn't answer in time")
    return answered


@pytest.mark.parametrize(
    ("torch", "ipex", "python"),
    [
        ("1.10.0", "1.10.100", "3.9"),
        ("1.11.0", "1.11.200", "3.10"),
        ("1.12.1", "1.12.300", "3.10"),
        ("1.13.1", "1.13.100", "3.10"),
        ("2.8.0", "2.8.0", "3.13"),
    ],
)
def test_stacks_are_locked_from_pypi(torch: str, ipex: str, python: str, tmp_path: Path, pypi: IndexAnswer) -> None:
    new = torch.startswith("2")
    requirements = (f"torch=={torch}", f"intel-extension-for-pytorch=={ipex}", "numpy" if new else "numpy<2")
    glibc = "2.28" if new else "2.17"
    lock = make_lock(maker(tmp_path), plan(*requirements, python=python, glibc=glibc), pypi)
    assert lock.packages["torch"] == torch
    assert lock.packages["intel-extension-for-pytorch"] == ipex
    assert lock.size > 200_000_000


def test_lock_made_on_a_host_has_no_paths_of_the_control_machine(found: IndexAnswer) -> None:
    name = "torch-2.8.0+cpu-cp311-cp311-linux_x86_64.whl"
    url, secret = f"file:///wheels/{name}", "/home/me/.ssh/id_rsa"
    text = (
        'lock-version = "1.0"\n[[packages]]\nname = "torch"\nversion = "2.8.0+cpu"\n'
        f'wheels = [{{ url = "{url}", hashes = {{ sha256 = "{"0" * 64}" }} }}]\n'
    )
    local_wheels = {url: {"path": secret, "sha256": "0" * 64, "size": 1}}
    answer = {"event": "done", "pylock": text, "local_wheels": local_wheels}
    session = FakeSession(Host("node1", "node1"), json.dumps(answer).encode() + b"\n")
    remote = LockMaker(session, "python3", "/home/me/.ipexctl", "/usr/bin/uv")
    (wheel,) = make_lock(remote, plan("torch==2.8.0+cpu"), found).wheels
    assert (wheel.path, wheel.url) == (None, f"file://{secret}")


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "9" * 6000, "packages = 3", "packages = [3]"])
def test_a_lock_of_a_host_that_cannot_be_read_is_malformed(found: IndexAnswer, text: str) -> None:
    answer = json.dumps({"event": "done", "pylock": text, "local_wheels": {}})
    session = FakeSession(Host("node1", "node1"), answer.encode() + b"\n")
    remote = LockMaker(session, "python3", "/home/me/.ipexctl", "/usr/bin/uv")
    with pytest.raises(MalformedReply):
        make_lock(remote, plan("torch==2.8.0+cpu"), found)


@pytest.mark.parametrize(
    "changed", [{"filename": "/etc/passwd"}, {"filename": 3}, {"size": "x"}, {"url": ["u"]}, {"sha256": None}]
)
def test_malformed_recorded_wheels_are_refused(changed: dict[str, object]) -> None:
    wheel = {"name": "torch", "version": "2.8.0", "filename": "torch-2.8.0-py3-none-any.whl", "sha256": "0" * 64}
    record = {**wheel, "size": 1, "url": "https://host/t.whl", "path": "/home/me/.ssh/id_rsa"}
    assert Wheel.from_json(record).path is None
    with pytest.raises(MalformedReply):
        Wheel.from_json({**record, **changed})


def test_a_source_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b"x" * 65536)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr("ipexctl.node.env.lock.MAX_SOURCE", 1 << 20)
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/deep-1.0.tar.gz"
        with pytest.raises(AgentError, match=r"deep-1\.0"):
            download(HttpClient({}), SourceArchive("deep", url, "0" * 64), tmp_path)
        server.shutdown()
    assert (tmp_path / "deep-1.0.tar.gz").stat().st_size <= 1 << 20
