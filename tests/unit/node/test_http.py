"""The agent's HTTP client: a login and the trust in a host stay with that host."""

from __future__ import annotations

import ssl
import urllib.error
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import pytest

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.http import HttpClient, RefusedAddress, explain, origin_of
from tls_helpers import serving, write_certificate


class Handler(BaseHTTPRequestHandler):
    """`/CODE/URL` redirects there; any other path is answered."""

    logins: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        self.logins.append((self.path, self.headers.get("Authorization")))
        code, _, url = self.path[1:].partition("/")
        self.send_response(int(code) if url else 200)
        if url:
            self.send_header("Location", url)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def plain() -> Iterator[str]:
    Handler.logins.clear()
    with serving(Handler) as at:
        yield f"http://{at}"


@pytest.fixture
def secure(certificate: Path) -> Iterator[str]:
    with serving(Handler, certificate) as at:
        yield f"https://{at}"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY REQUESTS_CA_BUNDLE CURL_CA_BUNDLE SSL_CERT_FILE NETRC"
    for name in names.split():
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def ended_at(client: HttpClient, url: str) -> str:
    with client.open(url, timeout=5) as response:
        return str(response.geturl())


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_a_redirect_on_the_same_origin_keeps_the_login(plain: str, code: int) -> None:
    client = HttpClient({}, {plain: "Basic abc"})
    assert ended_at(client, f"{plain}/{code}/{plain}/x") == f"{plain}/x"
    assert [login for _, login in Handler.logins] == ["Basic abc"] * 2


def test_a_redirect_to_another_origin_loses_it(plain: str) -> None:
    other = plain.replace("127.0.0.1", "localhost")
    ended_at(HttpClient({}), f"{plain.replace('//', '//me:secret@')}/302/{other}/x")
    assert [login is None for _, login in Handler.logins] == [False, True]


def test_https_never_redirects_to_http(plain: str, secure: str, certificate: Path) -> None:
    for trusted in ((), ("127.0.0.1",)):
        with pytest.raises(RefusedAddress):
            ended_at(HttpClient({"cert": str(certificate), "trusted_hosts": trusted}), f"{secure}/302/{plain}/x")


def test_a_redirect_leads_to_no_http_host_that_is_not_trusted(plain: str) -> None:
    """The first two hops lead to the same server; the third name has no address."""
    url = f"{plain}/302/{plain}/302/http://index.invalid/x"
    with pytest.raises(RefusedAddress):
        ended_at(HttpClient({"trusted_hosts": ("127.0.0.1",)}), url)
    with pytest.raises(urllib.error.URLError) as caught:
        ended_at(HttpClient({"trusted_hosts": ("index.invalid",)}), url)
    assert "name can't be resolved" in explain(caught.value)


@pytest.mark.parametrize(
    ("url", "is_refused"),
    [
        ("http://index.example/simple", True),
        ("http://127.0.0.1.example/simple", True),
        ("http://trusted.example:8080/simple", False),
        ("http://port.example/simple", False),
        ("http://port.example:81/simple", True),
        ("http://localhost:3141/simple", False),
        ("http://[::1]:3141/simple", False),
        ("https://index.example/simple", False),
    ],
)
def test_http_is_refused_for_a_host_that_pip_does_not_trust(url: str, is_refused: bool) -> None:
    client = HttpClient({"trusted_hosts": ("trusted.example", "port.example:80")})
    if not is_refused:
        client.check_encryption(url)
        return
    with pytest.raises(RefusedAddress, match="trusted-host"):
        client.check_encryption(url)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_a_redirect_leads_to_no_file(plain: str, url: str) -> None:
    with pytest.raises((RefusedAddress, urllib.error.HTTPError)):
        ended_at(HttpClient({}), f"{plain}/302/{url}")


def test_a_trusted_host_is_trusted_on_the_port_that_is_named(secure: str) -> None:
    host, port = "127.0.0.1", urlsplit(secure).port
    for trusted in (host, f"{host}:{port}"):
        assert ended_at(HttpClient({"trusted_hosts": (trusted,)}), secure + "/x")
    with pytest.raises(urllib.error.URLError) as caught:
        ended_at(HttpClient({"trusted_hosts": (f"{host}:1",)}), secure + "/x")
    assert "certificate can't be verified" in explain(caught.value)


def test_trust_does_not_follow_a_redirect(secure: str) -> None:
    other = secure.replace("127.0.0.1", "localhost")
    client = HttpClient({"trusted_hosts": ("127.0.0.1",)})
    with pytest.raises(urllib.error.URLError) as caught:
        ended_at(client, f"{secure}/302/{other}/x")
    assert isinstance(caught.value.reason, ssl.SSLCertVerificationError)


def test_certificates_that_cannot_be_read_are_an_error_of_the_host() -> None:
    with pytest.raises(AgentError, match="certificates can't be used"):
        HttpClient({"cert": "/nowhere.pem"}).load_certificates()


def test_an_origin_has_no_login_and_no_path() -> None:
    assert origin_of("https://me:secret@Host.example:8443/simple/") == "https://host.example:8443"
