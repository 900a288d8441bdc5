"""The agent's HTTP client: credentials and trusted hosts apply to one origin only, also after redirects."""

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
from ipexctl.node.common.http import HttpClient, RefusedAddress, explain
from ipexctl.node.common.urls import origin_of
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
        """Write no request log to stderr."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def http_url() -> Iterator[str]:
    Handler.logins.clear()
    with serving(Handler) as at:
        yield f"http://{at}"


@pytest.fixture
def https_url(certificate: Path) -> Iterator[str]:
    with serving(Handler, certificate) as at:
        yield f"https://{at}"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY REQUESTS_CA_BUNDLE CURL_CA_BUNDLE SSL_CERT_FILE NETRC"
    for name in names.split():
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def final_url(client: HttpClient, url: str) -> str:
    with client.open(url, timeout=5) as response:
        return str(response.geturl())


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_redirect_to_the_same_origin_keeps_credentials(http_url: str, code: int) -> None:
    client = HttpClient({}, {http_url: "Basic abc"})
    assert final_url(client, f"{http_url}/{code}/{http_url}/x") == f"{http_url}/x"
    assert [login for _, login in Handler.logins] == ["Basic abc"] * 2


def test_redirect_to_another_origin_drops_credentials(http_url: str) -> None:
    other = http_url.replace("127.0.0.1", "localhost")
    final_url(HttpClient({}), f"{http_url.replace('//', '//me:secret@')}/302/{other}/x")
    assert [login is None for _, login in Handler.logins] == [False, True]


def test_redirect_from_https_to_http_is_refused(http_url: str, https_url: str, certificate: Path) -> None:
    for trusted in ((), ("127.0.0.1",)):
        with pytest.raises(RefusedAddress):
            final_url(HttpClient({"cert": str(certificate), "trusted_hosts": trusted}), f"{https_url}/302/{http_url}/x")


def test_redirect_to_an_untrusted_http_host_is_refused(http_url: str) -> None:
    """The first two hops lead to the same server; the third name has no address."""
    url = f"{http_url}/302/{http_url}/302/http://index.invalid/x"
    with pytest.raises(RefusedAddress):
        final_url(HttpClient({"trusted_hosts": ("127.0.0.1",)}), url)
    with pytest.raises(urllib.error.URLError) as caught:
        final_url(HttpClient({"trusted_hosts": ("index.invalid",)}), url)
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
def test_http_is_refused_unless_the_host_is_a_pip_trusted_host(url: str, is_refused: bool) -> None:
    client = HttpClient({"trusted_hosts": ("trusted.example", "port.example:80")})
    if not is_refused:
        client.check_encryption(url)
        return
    with pytest.raises(RefusedAddress, match="trusted-host"):
        client.check_encryption(url)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_redirect_to_file_or_ftp_is_refused(http_url: str, url: str) -> None:
    with pytest.raises((RefusedAddress, urllib.error.HTTPError)):
        final_url(HttpClient({}), f"{http_url}/302/{url}")


def test_trusted_host_with_a_port_applies_only_to_that_port(https_url: str) -> None:
    host, port = "127.0.0.1", urlsplit(https_url).port
    for trusted in (host, f"{host}:{port}"):
        assert final_url(HttpClient({"trusted_hosts": (trusted,)}), https_url + "/x")
    with pytest.raises(urllib.error.URLError) as caught:
        final_url(HttpClient({"trusted_hosts": (f"{host}:1",)}), https_url + "/x")
    assert "certificate can't be verified" in explain(caught.value)


def test_redirect_target_is_not_trusted_because_its_source_is(https_url: str) -> None:
    other = https_url.replace("127.0.0.1", "localhost")
    client = HttpClient({"trusted_hosts": ("127.0.0.1",)})
    with pytest.raises(urllib.error.URLError) as caught:
        final_url(client, f"{https_url}/302/{other}/x")
    assert isinstance(caught.value.reason, ssl.SSLCertVerificationError)


def test_unreadable_certificates_raise_an_agent_error() -> None:
    with pytest.raises(AgentError, match="certificates can't be used"):
        HttpClient({"cert": "/nowhere.pem"}).load_certificates()


def test_origin_of_removes_credentials_and_path() -> None:
    assert origin_of("https://me:secret@Host.example:8443/simple/") == "https://host.example:8443"


def test_the_proxy_of_an_address_is_known_without_its_login(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("https_proxy", "http://me:secret@proxy:3128"),
        ("http_proxy", ""),
        ("no_proxy", "inside.example"),
    ):
        monkeypatch.setenv(name, value)
    client = HttpClient({})
    assert client.proxy_for("https://pypi.org/simple/") == "proxy:3128"
    assert client.proxy_for("https://inside.example/simple/") == ""
    assert client.proxy_for("http://pypi.org/simple/") == ""
    assert HttpClient({"proxy": "other:8080"}).proxy_for("https://pypi.org/") == "other:8080"
