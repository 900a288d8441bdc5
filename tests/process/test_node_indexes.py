"""Package indexes and directories of wheels, queried on a node; pip's own settings are obeyed."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import sys
import time
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_helpers import all_pythons
from env_helpers import said, start
from ipexctl.hosts.host import Host
from ipexctl.node.common.clock import stretched
from ipexctl.node.env import indexes
from ipexctl.node.env.env_replies import PipSettings
from ipexctl.remote.local import LocalSession
from ipexctl.remote.node_call import AgentPlace, call
from simple_index import SimpleIndex
from tiny_wheels import write_oneccl, write_sdist, write_wheel

TORCH = "torch-2.8.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheels")
    write_wheel(place, "torch", "2.8.0+cpu", tag="cp311-cp311-manylinux_2_28_x86_64")
    write_wheel(place, "torch", "2.8.0", tag="cp311-cp311-win_amd64")
    write_wheel(place, "torch", "2.8.0", tag="cp311-cp311-manylinux_2_28_aarch64")
    write_wheel(place, "torch", "2.8.0", tag="cp311-cp311-musllinux_1_2_x86_64")
    write_wheel(place, "oneccl_bind_pt", "2.7.0")
    (place / "torch-2.8.0.tar.gz").write_bytes(b"")
    return place


def ran(
    command: str, action: str, request: dict[str, Any], python: str, env: Mapping[str, str] | None
) -> dict[str, Any]:
    others = {name: value for name, value in os.environ.items() if not name.upper().startswith("PIP_")}
    last = said(start(command, action, request, python=python, env={**others, **(env or {})}))
    assert last["event"] == "done"
    return last


def ask(*urls: str, kind: str = "index", projects: tuple[str, ...] = ("torch", "oneccl_bind_pt"), **more: Any) -> Any:
    sources = [{"kind": kind, "url": url, "label": f"source {number}"} for number, url in enumerate(urls)]
    python, env = more.pop("python", sys.executable), more.pop("env", None)
    request = {"projects": list(projects), "sources": sources, "settings": {}, "timeout": 10, "sdists": False, **more}
    return ran("env.indexes", "ask", request, python, env)


def reasons(answer: dict[str, Any]) -> list[str]:
    return [item["reason"] for item in answer["failures"]]


@pytest.mark.parametrize("python", all_pythons())
@pytest.mark.parametrize("json", [True, False])
def test_index_is_read_in_json_and_html(wheels: Path, python: str, json: bool) -> None:
    with SimpleIndex(wheels, json=json, compressed=True, yanked={TORCH}, requires_python={TORCH: ">=3.9,<4"}) as served:
        answer = ask(served.url, python=python)
        assert answer["answered"] == ["source 0"]
        assert [item["filename"] for item in answer["candidates"]["torch"]] == [TORCH]
        assert answer["candidates"]["torch"][0] == {
            "project": "torch",
            "version": "2.8.0+cpu",
            "filename": TORCH,
            "url": served.file_url(TORCH),
            "sha256": served.digest(wheels / TORCH),
            "size": (wheels / TORCH).stat().st_size if json else None,
            "yanked": True,
            "requires_python": ">=3.9,<4",
            "source": "source 0",
            "mpi": None,
            "oneccl": None,
        }
        assert [item["version"] for item in answer["candidates"]["oneccl-bind-pt"]] == ["2.7.0"]
        assert served.asked("/files/") == 0


@pytest.mark.parametrize("json", [pytest.param(True, marks=pytest.mark.core), False])
def test_source_archives_count_where_they_are_wanted(tmp_path: Path, json: bool) -> None:
    write_sdist(tmp_path, "deep", "0.19")
    with SimpleIndex(tmp_path, json=json) as served:
        found = [ask(served.url, projects=("deep",), sdists=wanted)["candidates"] for wanted in (True, False)]
    assert [(item["version"], item["filename"]) for item in found[0]["deep"]] == [("0.19", "deep-0.19.tar.gz")]
    assert found[1] == {"deep": []}


@pytest.mark.parametrize("where", ["page", "directory", "file url"])
def test_find_links_can_be_a_page_or_a_directory(wheels: Path, where: str) -> None:
    with SimpleIndex(wheels) as served:
        urls = {"page": served.links, "directory": str(wheels), "file url": wheels.as_uri()}
        answer = ask(urls[where], kind="links")
    assert [item["filename"] for item in answer["candidates"]["torch"]] == [TORCH]
    if where != "page":
        assert answer["candidates"]["torch"][0]["size"] == (wheels / TORCH).stat().st_size


def test_mpi_and_oneccl_in_bindings_are_looked_for_in_local_wheels(tmp_path: Path) -> None:
    write_oneccl(tmp_path, "2.7.0")
    write_oneccl(tmp_path, "2.8.0", bundled_mpi=False)
    write_wheel(tmp_path, "oneccl_bind_pt", "2.9.0", files={"oneccl_bindings_for_pytorch/lib/libccl_x.so": ""})
    (tmp_path / "oneccl_bind_pt-2.6.0-cp311-cp311-linux_x86_64.whl").write_bytes(b"no wheel")
    found = ask(str(tmp_path), kind="links")["candidates"]["oneccl-bind-pt"]
    assert {item["version"]: (item["mpi"], item["oneccl"]) for item in found} == {
        "2.6.0": (None, None),
        "2.7.0": ("2021.14", True),
        "2.8.0": ("", True),
        "2.9.0": ("", False),
    }


def test_page_with_unusual_links_is_read(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<html><head><BASE href='http://far.example/whl/'></head>"
        "<A HREF='cpu/torch-1.10.0%2Bcpu-cp39-cp39-linux_x86_64.whl' data-requires-python='&gt;=3.6'>x</a>"
        '<a rel="nofollow" href=torch-1.11.0-cp39-cp39-manylinux1_x86_64.whl>y</a>'
        '<a class="a>b" href="torch-1.12.0-cp39-cp39-manylinux1_x86_64.whl#md5=12&sha256=' + "AB" * 32 + '">z</a>'
        "<a href='notes.html'>n</a><a href='torch-broken.whl'>n</a>"
    )
    found = ask(str(page), kind="links")["candidates"]["torch"]
    assert [item["version"] for item in found] == ["1.10.0+cpu", "1.11.0", "1.12.0"]
    assert found[0]["url"] == "http://far.example/whl/cpu/torch-1.10.0%2Bcpu-cp39-cp39-linux_x86_64.whl"
    assert found[0]["requires_python"] == ">=3.6"
    assert found[2]["sha256"] == "ab" * 32


@pytest.mark.parametrize(
    ("behaviour", "projects", "failures", "most"),
    [
        ({}, ("nothing-such",), [], 2),
        (
            {"hanging": {"oneccl-bind-pt"}},
            ("torch", "oneccl_bind_pt"),
            ["it answers, but not for oneccl-bind-pt: no answer in time"],
            4,
        ),
        (
            {"errors": {"*": 500}},
            tuple(f"project-{number}" for number in range(40)),
            ["it answers with error 500 (Internal Server Error)"],
            8,
        ),
        ({"errors": {"oneccl-bind-pt": 403}}, ("torch", "oneccl_bind_pt"), [], 4),
        ({"errors": {"*": 403}}, ("torch", "oneccl_bind_pt"), ["needs a login"], 4),
    ],
    ids=["unknown project", "one project hangs", "error", "one project needs a login", "all need a login"],
)
def test_index_answers_for_all_projects_or_fails_with_a_reason(
    wheels: Path, behaviour: dict[str, Any], projects: tuple[str, ...], failures: list[str], most: int
) -> None:
    """A failed one is not asked for the other projects."""
    with SimpleIndex(wheels, **behaviour) as served:
        answer = ask(served.url, projects=projects, timeout=2.5)
        assert served.asked("/simple/") <= most
    assert reasons(answer) == failures
    assert answer["answered"] == ([] if failures else ["source 0"])
    assert not failures or not any(answer["candidates"].values())


def test_silent_index_costs_only_its_timeout(wheels: Path) -> None:
    with SimpleIndex(wheels, hanging={"*"}) as hung, SimpleIndex(wheels) as well:
        began = time.monotonic()
        answer = ask(hung.url, hung.links, well.url, timeout=2.5)
        took = time.monotonic() - began
        assert hung.asked("/simple/torch") <= 1
    assert answer["answered"] == ["source 2"]
    limit = stretched(2.5)
    assert all(re.fullmatch(r"no answer (within [\d.]+ s|in time)", reason) for reason in reasons(answer))
    assert not any(failure["has_replied"] for failure in answer["failures"])
    assert took < 3 * max(limit, stretched(2.5)) + 8


def test_an_index_that_goes_on_to_answer_is_waited_for(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers take longer together than three times the limit for the first one."""
    read, names = indexes.read_page, [f"project-{number}" for number in range(6)]

    def read_slowly(*args: Any) -> tuple[str, str, str]:
        time.sleep(0 if names[0] in args[1] else 1.1)
        return read(*args)

    monkeypatch.setattr(indexes, "MAX_PARALLEL", 1)
    monkeypatch.setattr(indexes, "stretched", lambda seconds: seconds)
    monkeypatch.setattr(indexes, "read_page", read_slowly)
    with SimpleIndex(wheels) as served:
        source: Any = {"kind": "index", "url": served.url, "label": "slow"}
        request: Any = {"projects": names, "sources": [source], "settings": {}, "timeout": 1.5, "sdists": False}
        answer = indexes.query_sources(request, io.BytesIO())
    assert (answer.answered, answer.failures) == (("slow",), ())


def test_index_that_needs_a_login_is_reported(wheels: Path) -> None:
    with SimpleIndex(wheels, login=("me", "secret")) as served:
        assert reasons(ask(served.url)) == ["needs a login"]
        answer = ask(served.url_with_login)
        assert answer["answered"] == ["source 0"]
        assert "secret" not in json.dumps({**answer, "logins": None})
        assert list(answer["logins"]) == [served.origin]


def test_index_errors_are_described(wheels: Path, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        refusing = f"http://127.0.0.1:{unused.getsockname()[1]}/simple"
        answer = ask(refusing, "https://no-such-host.invalid/simple", str(tmp_path / "none"), "ftp://host/simple")
    assert reasons(answer) == [
        "the connection is refused",
        "its name can't be resolved",
        "no such directory",
        "its address begins with neither http:// nor https:// nor file://",
    ]


def settings(env: Mapping[str, str], python: str = sys.executable) -> dict[str, Any]:
    return ran("env.pip_settings", "read", {}, python, env)


@pytest.mark.parametrize("python", all_pythons())
def test_pip_settings_are_read_in_the_order_of_pip(tmp_path: Path, python: str) -> None:
    user = tmp_path / "user" / "pip" / "pip.conf"
    system = tmp_path / "system" / "pip" / "pip.conf"
    for file in (user, system):
        file.parent.mkdir(parents=True)
    system.write_text("[global]\nindex-url = https://system/simple\nextra-index-url = https://c/simple\n")
    user.write_text(
        "[global]\nindex_url = https://user/simple\ncert = /user.pem\nproxy = http://p:1\n"
        "extra-index-url =\n    https://a/simple\n    https://b/simple\n"
        "[install]\nno-index = yes\ntrusted-host = a b\n"
    )
    env = {
        "XDG_CONFIG_DIRS": str(tmp_path / "system"),
        "XDG_CONFIG_HOME": str(tmp_path / "user"),
        "HOME": str(tmp_path),
        "PIP_FIND_LINKS": "~/wheels https://links/page",
        "PIP_CERT": "",
    }
    found = settings(env, python)
    assert found["index_url"] == "https://user/simple"
    assert found["extra_index_urls"] == ["https://a/simple", "https://b/simple"]
    assert found["find_links"] == [str(tmp_path / "wheels"), "https://links/page"]
    assert (found["no_index"], found["trusted_hosts"], found["cert"], found["proxy"]) == (
        True,
        ["a", "b"],
        "/user.pem",
        "http://p:1",
    )


def test_pip_variables_override_files_and_devnull_disables_them(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://file/simple\n")
    assert settings({"PIP_CONFIG_FILE": str(file)})["index_url"] == "https://file/simple"
    both = {"PIP_CONFIG_FILE": str(file), "PIP_INDEX_URL": "https://env/simple"}
    assert settings(both)["index_url"] == "https://env/simple"
    off = settings({"PIP_CONFIG_FILE": os.devnull})
    assert (off["index_url"], off["extra_index_urls"], off["find_links"]) == (None, [], [])


def test_invalid_pip_config_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("index-url = https://me:secret@host/simple\n")
    assert settings({"PIP_CONFIG_FILE": str(file)})["index_url"] is None


def test_pip_settings_of_a_venv_are_read_and_its_pth_files_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python of a host may be that of a venv which its login activates; its .pth files run code."""
    monkeypatch.delenv("PIP_CONFIG_FILE")
    venv.create(tmp_path / "venv", symlinks=True)
    (tmp_path / "venv/pip.conf").write_text("[global]\nindex-url = https://venv/simple\n")
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (site / "own.pth").write_text(f"import os; os.mkdir({str(tmp_path / 'ran')!r})\n")
    reply = call(
        LocalSession(Host("here", "localhost")),
        "env.pip_settings",
        "read",
        {},
        AgentPlace(str(tmp_path / "venv/bin/python")),
    )
    assert reply.decode(PipSettings).index_url == "https://venv/simple"
    assert not (tmp_path / "ran").exists()
