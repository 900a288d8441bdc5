"""Downloads store the correct bytes or report a reason, for every behaviour of the server."""

from __future__ import annotations

import base64
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from node_store_helpers import content_of, file_of, run, start

from agent_helpers import all_pythons
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.http import HttpClient
from ipexctl.node.files import download
from ipexctl.node.files.store import Progress
from tls_helpers import serving, write_certificate

BODY = os.urandom(2_500_000)


class Handler(BaseHTTPRequestHandler):
    """The first word of the path says how to behave."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[tuple[str, dict[str, str]]]] = []
    counts: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        mode = self.path.split("/")[-2] if "/" in self.path[1:] else ""
        type(self).asked.append((self.path, dict(self.headers.items())))
        type(self).counts[mode] += 1
        getattr(self, f"do_{mode}".replace("-", "_"))(type(self).counts[mode])

    def _answer(self, body: bytes, *, status: int = 200, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        if length is not None and length > len(body):
            self.close_connection = True

    def _start(self) -> int:
        return int(self.headers.get("Range", "bytes=0-")[6:-1])

    def _part(self, until: int | None = None, body: bytes = BODY) -> None:
        start = self._start()
        rest = body[start:]
        self._answer(
            rest[: until - start if until else None],
            status=206 if start else 200,
            length=len(rest),
            Content_Range=f"bytes {start}-{len(body) - 1}/{len(body)}",
        )

    def do_good(self, count: int) -> None:
        self._part()

    def do_dead_halfway(self, count: int) -> None:
        self._part(1_200_000 if count == 1 else None)

    def do_dead_always(self, count: int) -> None:
        self._answer(BODY[:1000], length=len(BODY))

    def do_no_range(self, count: int) -> None:
        self._answer(BODY[: 1_200_000 if count == 1 else None], length=len(BODY))

    def do_other_range(self, count: int) -> None:
        if self._start():
            self._answer(BODY, status=206, Content_Range="bytes 0-5/6")
        else:
            self._answer(BODY[:1000], length=len(BODY))

    def do_changed_meanwhile(self, count: int) -> None:
        """The first answer is another version of the file, and it is truncated."""
        self._part(1_200_000 if count == 1 else None, BODY[::-1] if count == 1 else BODY)

    def do_wrong_bytes(self, count: int) -> None:
        self._answer(BODY[:-1] + bytes([BODY[-1] ^ 1]))

    def do_too_long(self, count: int) -> None:
        self._answer(BODY + b"more")

    def do_too_short(self, count: int) -> None:
        self._answer(BODY[:-7])

    def do_no_length(self, count: int) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(BODY)
        self.close_connection = True

    def do_chunked(self, count: int) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at in range(0, len(BODY), 99_999):
            piece = BODY[at : at + 99_999]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def do_busy(self, count: int) -> None:
        if count < 3:
            self._answer(b"later", status=503)
        else:
            self._part()

    def do_gone(self, count: int) -> None:
        self._answer(b"no", status=404)

    def do_silent(self, count: int) -> None:
        self._answer(BODY[:1000], length=len(BODY) if count else None)
        time.sleep(5)

    def do_slow(self, count: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        for at in range(0, len(BODY), 100_000):
            self.wfile.write(BODY[at : at + 100_000])
            time.sleep(0.01)

    def do_moved(self, count: int) -> None:
        self._answer(b"", status=302, Location="/good/a.whl")

    def do_round(self, count: int) -> None:
        self._answer(b"", status=302, Location=self.path)

    def do_private(self, count: int) -> None:
        wanted = "Basic " + base64.b64encode(b"me:s3 cret").decode()
        if self.headers.get("Authorization") != wanted:
            self._answer(b"", status=401)
        else:
            self._part()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[str]:
    Handler.asked.clear()
    Handler.counts.clear()
    with serving(Handler) as at:
        yield f"http://{at}"


def item(url: str, mode: str, content: bytes = BODY, name: str = "a.whl", **more: Any) -> dict[str, Any]:
    return {**file_of(content, name), "url": f"{url}/{mode}/{name}", "headers": {}, **more}


def fetch(store: Path, *items: dict[str, Any], settings: Any = None, **options: Any) -> dict[str, Any]:
    request = {"store": str(store), "files": list(items), "settings": settings or {}}
    said = run("download", "fetch", request, **options)
    assert said.last["event"] == "done", said
    return said.last


def failure_reason(store: Path, *items: dict[str, Any], **options: Any) -> str:
    last = fetch(store, *items, **options)
    assert last["got"] == []
    assert all(path.endswith(".part") for path in content_of(store))
    return str(last["failed"][0]["reason"])


@pytest.mark.parametrize(
    ("mode", "requests"),
    [
        *[("good", 1), ("dead-halfway", 2), ("no-range", 2), ("no-length", 1), ("chunked", 1), ("busy", 3)],
        *[("moved", 2), ("changed-meanwhile", 3), ("slow", 1)],
    ],
)
def test_download_is_correct_for_every_server_behaviour(server: str, tmp_path: Path, mode: str, requests: int) -> None:
    wanted = item(server, mode)
    last = fetch(tmp_path, wanted)
    assert (last["got"], last["failed"]) == ([wanted["sha256"]], [])
    assert list(content_of(tmp_path).values()) == [BODY]
    assert len(Handler.asked) == requests
    if mode == "dead-halfway":
        assert Handler.asked[1][1]["Range"] == "bytes=1200000-"


def test_download_of_unknown_size_is_correct(server: str, tmp_path: Path) -> None:
    modes = ["good", "dead-halfway", "no-range", "no-length", "chunked"]
    last = fetch(tmp_path, *(item(server, mode, name=f"{mode}.whl", size=None) for mode in modes))
    assert last["failed"] == []
    assert list(content_of(tmp_path).values()) == [BODY] * 5


@pytest.mark.parametrize("python", all_pythons())
def test_download_works_with_every_python(server: str, tmp_path: Path, python: str) -> None:
    (tmp_path / "b.whl").write_bytes(b"local")
    local = {**file_of(b"local", "b.whl"), "url": f"file://{tmp_path}/b.whl", "headers": {}}
    last = fetch(tmp_path / "store", item(server, "dead-halfway"), local, python=python)
    assert sorted(content_of(tmp_path / "store").values()) == sorted([BODY, b"local"]), last


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("wrong-bytes", "a.whl: its 2500000 bytes have the sha256"),
        ("too-long", "more than the 2500000 bytes"),
        ("too-short", "2499993 bytes where 2500000 were expected"),
        ("gone", "the server says 404"),
        ("dead-always", "broke off after"),
        ("other-range", "it sent bytes 0-5/6"),
        ("round", "redirect"),
        ("private", "the server says 401"),
    ],
)
def test_failed_download_has_a_reason(server: str, tmp_path: Path, mode: str, reason: str) -> None:
    said = failure_reason(tmp_path, item(server, mode))
    assert reason in said
    assert "a.whl" in said


@pytest.mark.core
def test_failed_download_does_not_affect_others(server: str, tmp_path: Path) -> None:
    good = [item(server, "good", name=f"{index}.whl") for index in range(6)]
    last = fetch(tmp_path, item(server, "gone", b"other"), *good)
    assert len(last["got"]) == 6
    assert len(content_of(tmp_path)) == 6


def test_silent_server_is_a_timeout(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "DOWNLOAD_SILENCE", 0.3)
    file = cast("download.RemoteFile", item(server, "silent"))
    store = download.FileDownload(str(tmp_path), file, HttpClient({}), Progress(None))
    with pytest.raises(AgentError, match=r"silent for 0\.3 s"):
        store.run()
    assert content_of(tmp_path) == {}


def test_download_starts_anew_if_another_call_continues_what_was_left(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = cast("download.RemoteFile", item(server, "good"))
    monkeypatch.setattr(download, "unfinished", lambda _: {file["sha256"][:16]: 2_000_000})
    download.FileDownload(str(tmp_path), file, HttpClient({}), Progress(None)).run()
    assert content_of(tmp_path) == {f"{file['sha256']}/a.whl": BODY}


def test_connection_and_url_errors_are_reported(tmp_path: Path) -> None:
    assert "refused" in failure_reason(tmp_path, item("http://127.0.0.1:1", "good"))
    assert "http://no-such-host.invalid/good/a.whl: " in failure_reason(
        tmp_path, item("http://no-such-host.invalid", "good")
    )
    assert "only http, https and file" in failure_reason(tmp_path, item("ftp://127.0.0.1", "good"))
    assert "No such file" in failure_reason(tmp_path, item("file:///nowhere", "good"))


def test_url_login_is_used_and_not_shown(server: str, tmp_path: Path) -> None:
    address = server.replace("http://", "http://me:s3%20cret@")
    assert fetch(tmp_path / "store", item(address, "private"))["failed"] == []
    assert "Authorization" in Handler.asked[0][1]
    said = failure_reason(tmp_path / "other", item(address, "gone", b"x"))
    assert "cret" not in said


def test_netrc_login_is_used(server: str, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text('machine 127.0.0.1 login me password "s3 cret"\n')
    (tmp_path / "netrc").chmod(0o600)
    env = {"NETRC": str(tmp_path / "netrc")}
    assert fetch(tmp_path / "store", item(server, "private"), env=env)["failed"] == []


def test_proxy_of_environment_or_request_is_used(server: str, tmp_path: Path) -> None:
    wanted = item("http://index.invalid", "good")
    assert fetch(tmp_path / "a", wanted, env={"http_proxy": server})["failed"] == []
    assert fetch(tmp_path / "b", wanted, env={"ALL_PROXY": server})["failed"] == []
    assert fetch(tmp_path / "c", wanted, settings={"proxy": server})["failed"] == []
    assert {path for path, _ in Handler.asked} == {"http://index.invalid/good/a.whl"}
    env = {"http_proxy": server, "NO_PROXY": "index.invalid"}
    assert fetch(tmp_path / "d", wanted, env=env)["got"] == []


def test_certificates_are_verified_with_the_configured_authority(tmp_path: Path) -> None:
    cert = write_certificate(tmp_path)
    with serving(Handler, cert) as at:
        wanted = item(f"https://{at}", "good")
        assert "certificate can't be verified" in failure_reason(tmp_path / "none", wanted)
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            assert fetch(tmp_path / name, wanted, env={name: str(cert)})["failed"] == []
        assert fetch(tmp_path / "asked", wanted, settings={"cert": str(cert)})["failed"] == []
        assert fetch(tmp_path / "trusted", wanted, settings={"trusted_hosts": ["127.0.0.1"]})["failed"] == []
    said = run("download", "fetch", {"store": str(tmp_path), "files": [wanted], "settings": {"cert": "/nowhere.pem"}})
    assert "the certificates can't be used" in said.reason


def test_download_completes_after_sigkill(server: str, tmp_path: Path) -> None:
    files = [item(server, "slow", name=f"{index}.whl") for index in range(3)]
    request = {"store": str(tmp_path), "files": files, "settings": {}}
    for _ in range(4):
        process = start("download", "fetch", request)
        time.sleep(random.uniform(0.1, 0.5))
        process.kill()
        process.communicate()
    fetch(tmp_path, *files)
    assert sorted(content_of(tmp_path)) == sorted(f"{file['sha256']}/{file['name']}" for file in files)
