"""The download from a hub, by the real huggingface_hub, and what a hub may do to it: refuse, cut, send wrong bytes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_helpers import wait_until
from env_helpers import start
from hub_server import Hub, Repo, _HubHandler
from ipexctl.node.common.hub_cache import CACHE, first_misplaced_path
from ipexctl.node.common.processes import all_processes
from ipexctl.node.files.manifest import read_entries

SIZE = 9_000_000
TOKEN = "hf_of_the_test"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "hub") as hub:
        large = random.Random(1).randbytes(SIZE)
        hub.add("model", "org/tiny", {"config.json": b"{}", "a/vocab.txt": b"a b\n", "model.safetensors": large})
        hub.add("model", "org/private", {"config.json": b"{}", "model.safetensors": large}, token=TOKEN)
        hub.add("model", "org/gated", {"config.json": b"{}"}, token=TOKEN, gated=True)
        hub.add("dataset", "org/text", {f"part-{number:03}.txt": b"%d" % number for number in range(120)})
        yield hub


def request_of(hub: Hub, home: Path, name: str, **more: Any) -> dict[str, Any]:
    kind = more.pop("kind", "model")
    repos = [{"kind": kind, "repo_id": name, "revision": more.pop("revision", "main")}]
    base = {"home": str(home), "repos": repos, "include": [], "endpoint": hub.endpoint, "token": "", "dry_run": False}
    return {**base, **more}


def begin(request: dict[str, Any]) -> subprocess.Popen[bytes]:
    return start("hub.hub_download", "download", request, python=sys.executable)


def download(hub: Hub, home: Path, name: str, **more: Any) -> dict[str, Any]:
    """The last event of the agent."""
    out, err = begin(request_of(hub, home, name, **more)).communicate(timeout=60)
    assert out.strip(), err
    last: dict[str, Any] = json.loads(out.splitlines()[-1])
    return last


def check(reply: dict[str, Any], repo: Repo, home: Path) -> None:
    """What the answer lists is there, and it is what the hub has."""
    assert reply["event"] == "done", reply
    (found,) = reply["snapshots"]
    entries = read_entries(found["entries"].encode())
    assert first_misplaced_path(entries, found["folder"]) == ""
    snapshot = home / CACHE / found["folder"] / "snapshots" / repo.commit
    assert {name: (snapshot / name).read_bytes() for name in repo.files()} == {
        name: (repo.path / name).read_bytes() for name in repo.files()
    }
    assert {entry.path for entry in entries if entry.kind == "l"} == {
        f"{found['folder']}/snapshots/{repo.commit}/{name}" for name in repo.files()
    }


def test_a_second_download_asks_once_and_moves_nothing(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for kind, name in (("model", "org/tiny"), ("dataset", "org/text")):
        check(download(hub, home, name, kind=kind), hub.repos[(kind, name)], home)
        hub.requests.clear()
        hub.storage_requests.clear()
        again = download(hub, home, name, kind=kind)
        check(again, hub.repos[(kind, name)], home)
        assert again["snapshots"][0]["downloaded"] == 0
        assert [path for _, path, _ in hub.requests if "/resolve/" in path] == []
        assert hub.storage_requests == []


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("org/none", {}, ("401", "Repository not found", "HF_TOKEN", "/org/none")),
        ("org/private", {}, ("401", "Repository not found", "HF_TOKEN")),
        ("org/private", {"token": "hf_wrong"}, ("401", "Invalid credentials", "HF_TOKEN")),
        ("org/gated", {}, ("401", "restricted", "ask for access on", "/org/gated", "HF_TOKEN")),
        ("org/tiny", {"revision": "v9"}, ("404", "Invalid rev id", "v9", "branches and tags")),
        ("org/tiny", {"include": ["*.bin"]}, ("no file that matches *.bin", "--include")),
        (
            "org/tiny",
            {"endpoint": "http://127.0.0.1:9"},
            ("can't be reached", "--on HOST", "HF_ENDPOINT="),
        ),
    ],
)
def test_a_refusal_has_the_hubs_words_and_the_line_to_type(
    hub: Hub, tmp_path: Path, name: str, more: dict[str, Any], words: tuple[str, ...]
) -> None:
    reply = download(hub, tmp_path / "home", name, **more)
    assert reply["event"] == "failed"
    text = f"{reply['reason']} {reply['fix']}"
    assert [word for word in words if word not in text] == [], text
    assert "hf_wrong" not in text


@pytest.mark.core
def test_a_token_reads_what_is_private_and_goes_to_no_storage(hub: Hub, tmp_path: Path) -> None:
    for name in ("org/private", "org/gated"):
        reply = download(hub, tmp_path / "home", name, token=TOKEN)
        check(reply, hub.repos[("model", name)], tmp_path / "home")
        assert TOKEN not in json.dumps(reply)
    assert {login for _, _, login in hub.requests} == {f"Bearer {TOKEN}"}
    kept = subprocess.run(["grep", "-r", TOKEN, str(tmp_path / "home")], capture_output=True, check=False)
    assert kept.returncode == 1


def test_a_redirect_to_another_host_takes_no_token_along(hub: Hub, tmp_path: Path) -> None:
    hub.faults.redirect = hub.storage_address
    assert download(hub, tmp_path / "home", "org/private", token=TOKEN)["event"] == "failed"
    assert {login for _, _, login in hub.requests} == {f"Bearer {TOKEN}"}
    assert set(hub.storage_logins) == {""}


def set_cuts(hub: Hub) -> None:
    hub.faults.cut_after, hub.faults.cuts = 3_000_000, 2


def set_too_many(hub: Hub) -> None:
    hub.faults.too_many, hub.faults.retry_after = 2, 1


def set_wrong_bytes(hub: Hub) -> None:
    hub.faults.wrong_bytes = 1


@pytest.mark.parametrize("fault", [set_cuts, set_too_many, set_wrong_bytes])
def test_a_fault_of_the_hub_that_passes_is_survived(hub: Hub, tmp_path: Path, fault: Callable[[Hub], None]) -> None:
    fault(hub)
    check(download(hub, tmp_path / "home", "org/tiny"), hub.repos[("model", "org/tiny")], tmp_path / "home")


def test_bytes_that_are_always_wrong_are_refused_and_nothing_is_named(hub: Hub, tmp_path: Path) -> None:
    hub.faults.wrong_bytes = 9
    reply = download(hub, tmp_path / "home", "org/tiny")
    assert reply["event"] == "failed"
    assert "model.safetensors" in reply["reason"]
    assert list((tmp_path / "home" / CACHE).glob("models--org--tiny/snapshots/*/model.safetensors")) == []


def test_a_damaged_blob_is_downloaded_again_alone(hub: Hub, tmp_path: Path) -> None:
    home, repo = tmp_path / "home", hub.repos[("model", "org/tiny")]
    check(download(hub, home, "org/tiny"), repo, home)
    for name in ("config.json", "model.safetensors"):
        blob = home / CACHE / "models--org--tiny" / "blobs" / repo.blob(name)
        blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    hub.requests.clear()
    check(download(hub, home, "org/tiny"), repo, home)
    files = {path.rpartition("/")[2] for method, path, _ in hub.requests if "/resolve/" in path}
    assert files == {"config.json", "model.safetensors"}


@pytest.mark.parametrize("is_touched", [False, True])
def test_a_blob_is_read_again_if_it_was_touched(hub: Hub, tmp_path: Path, is_touched: bool) -> None:
    home, repo = tmp_path / "home", hub.repos[("model", "org/tiny")]
    check(download(hub, home, "org/tiny"), repo, home)
    blob = home / CACHE / "models--org--tiny" / "blobs" / repo.blob("model.safetensors")
    (path,) = rows = json.loads((home / "hub" / "verified.json").read_text())
    assert home / "hub" / path == blob
    blob.write_bytes(b"?" * SIZE)
    if not is_touched:  # the record has the damaged file as it is
        status = blob.stat()
        rows[path][1:] = [SIZE, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]
        (home / "hub" / "verified.json").write_text(json.dumps(rows))
    hub.storage_requests.clear()
    reply = download(hub, home, "org/tiny")
    if is_touched:
        check(reply, repo, home)
    assert len(hub.storage_requests) == is_touched


@pytest.mark.parametrize(
    ("names", "links"),
    [(["../../../../evil"], {}), (["/etc/evil"], {}), (["a/../../evil"], {}), ([], {"config.json": "../../../evil"})],
)
def test_names_of_a_hub_lead_nowhere(hub: Hub, tmp_path: Path, names: list[str], links: dict[str, str]) -> None:
    hub.faults.names, hub.faults.links = names, links
    reply = download(hub, tmp_path / "home", "org/tiny")
    assert reply["event"] == "failed", reply
    assert "evil" in reply["reason"]
    assert list(tmp_path.rglob("*evil*")) == []


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("etag", ["../../../../evil", "{outside}/evil"])
def test_an_answer_about_a_file_leads_nowhere(hub: Hub, tmp_path: Path, name: str, etag: str) -> None:
    """Its list is right."""
    hub.faults.etags = {name: etag.format(outside=tmp_path)}
    reply = download(hub, tmp_path / "home", "org/tiny")
    assert reply["event"] == "failed", reply
    assert "not a hash" in reply["reason"]
    assert list(tmp_path.rglob("*evil*")) == []


def with_first(**fields: object) -> Callable[[Any], Any]:
    """The first file of a list gets these fields."""
    return lambda document: [{**document[0], **fields}, *document[1:]] if isinstance(document, list) else document


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda document: document if isinstance(document, list) else [1], "can't be read"),
        (lambda document: document if isinstance(document, list) else {**document, "siblings": [3]}, "can't be read"),
        (lambda document: {"a": 1} if isinstance(document, list) else document, "can't be read"),
        (with_first(size=None), "can't be read"),
        (with_first(lfs="x"), "can't be read"),
        (with_first(oid=None), "can't be read"),
    ],
)
def test_a_list_of_another_form_is_refused_in_words(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any], words: str
) -> None:
    send = _HubHandler._json
    monkeypatch.setattr(_HubHandler, "_json", lambda self, document, **more: send(self, change(document), **more))
    reply = download(hub, tmp_path / "home", "org/tiny")
    assert (reply["event"], words in reply["reason"]) == ("failed", True), reply


def test_a_file_has_the_size_of_its_bytes_whatever_the_list_says(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, send = with_first(size=1), _HubHandler._json
    monkeypatch.setattr(_HubHandler, "_json", lambda self, document, **more: send(self, change(document), **more))
    reply = download(hub, tmp_path / "home", "org/tiny")
    check(reply, hub.repos[("model", "org/tiny")], tmp_path / "home")
    blobs = [entry for entry in read_entries(reply["snapshots"][0]["entries"].encode()) if "/blobs/" in entry.path]
    assert {entry.size for entry in blobs} == {2, 4, SIZE}


def test_a_cache_in_a_place_that_others_can_exchange_is_refused(hub: Hub, tmp_path: Path) -> None:
    home, shared = tmp_path / "home", tmp_path / "shared"
    check(download(hub, home, "org/tiny"), hub.repos[("model", "org/tiny")], home)
    (home / "hub").rename(shared)
    (home / "hub").symlink_to(shared)
    for mode, event in ((0o755, "done"), (0o777, "failed")):
        shared.chmod(mode)
        reply = download(hub, home, "org/tiny")
        assert reply["event"] == event, reply


def test_what_a_killed_download_has_left_goes_with_the_next(hub: Hub, tmp_path: Path) -> None:
    home, repo = tmp_path / "home", hub.repos[("model", "org/tiny")]
    blobs = home / CACHE / "models--org--tiny" / "blobs"
    hub.faults.cut_after, hub.faults.cuts = 4 << 20, 1
    process = begin(request_of(hub, home, "org/tiny"))
    # The small files are complete by then.
    wait_until(lambda: [path.stat().st_size >= 4 << 20 for path in blobs.glob("*.incomplete")] == [True])
    (child,) = [found.pid for found in all_processes() if found.parent == process.pid]
    process.kill()
    process.communicate()
    wait_until(lambda: child not in {found.pid for found in all_processes()})
    assert len(list(blobs.glob("*.incomplete"))) == 1
    (blobs / f"{'a' * 40}.0123abcd.incomplete").write_bytes(b"of another snapshot")
    check(download(hub, home, "org/tiny"), repo, home)
    assert [path.name for path in blobs.glob("*.incomplete")] == [f"{'a' * 40}.0123abcd.incomplete"]
