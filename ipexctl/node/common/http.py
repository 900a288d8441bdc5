"""HTTP client for package indexes, with the proxies, certificates and logins that pip would use on this host.

`open` raises an OSError, HTTPException or ValueError, which `explain` turns into text, or an AgentError if certificates
can't be used.
"""

from __future__ import annotations

import base64
import http.client
import netrc
import os
import re
import socket
import ssl
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence, TypedDict
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.urls import origin_of

_CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")
"""Debian, Red Hat, SUSE. They are added because a conda Python lacks a company's own certificate authorities."""
_SCHEMES = ("http", "https", "file")


class RefusedAddress(ValueError):
    """Raised instead of requesting an address, or following a redirect."""


class HttpSettings(TypedDict, total=False):
    trusted_hosts: Sequence[str]
    """`host` or `host:port` whose certificates are not verified."""
    cert: str | None
    client_cert: str | None
    proxy: str | None


class HttpClient:
    def __init__(self, settings: HttpSettings, logins: Mapping[str, str] | None = None) -> None:
        """`logins`: value of the Authorization header for each origin."""
        self.logins: dict[str, str] = dict(logins or {})
        self._cafile, self._client_cert = settings.get("cert"), settings.get("client_cert")
        self._trusted_hosts = settings.get("trusted_hosts", ())
        self._contexts: dict[bool, ssl.SSLContext] = {}
        self._lock = threading.Lock()
        self._proxies = _proxies(settings.get("proxy"))
        proxies = urllib.request.ProxyHandler(self._proxies)
        handlers = proxies, _HttpsHandler(self._context_for), _RedirectHandler(self.check_encryption)
        self._opener = urllib.request.build_opener(*handlers)

    def open(self, url: str, *, timeout: float, method: str = "GET", headers: Mapping[str, str] | None = None) -> Any:
        """Request the URL, and return the response.

        One login is sent, to that origin only: the URL's credentials, else a known login, else one from ~/.netrc. A
        header Authorization that the caller gives comes before these.
        """
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES:
            raise ValueError("only http, https and file addresses can be fetched")
        plain_url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))
        fields = {"User-Agent": "ipexctl", **(headers or {})}
        given = [fields.pop(name) for name in list(fields) if name.lower() == "authorization"]
        login = given[0] if given else self._login(parts)
        request = urllib.request.Request(plain_url, headers=fields, method=method)  # noqa: S310 - the scheme is checked above
        if login:
            request.add_unredirected_header("Authorization", login)
        return self._opener.open(request, timeout=timeout)

    def check_encryption(self, url: str) -> None:
        """Raise a RefusedAddress for http, except to this machine and pip's trusted hosts."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_own = host in ("localhost", "::1") or re.match(r"127(\.\d+){3}$", host)
        if parts.scheme == "http" and not is_own and not self._is_trusted(parts):
            raise RefusedAddress(
                f"http://{host} is not encrypted, and pip is not set to trust it there:"
                f" pip config set global.trusted-host {host}"
            )

    def proxy_for(self, url: str) -> str:
        """Return host and port of the proxy for this URL; empty without one."""
        parts = urlsplit(url)
        proxy = self._proxies.get(parts.scheme, "")
        if not proxy or urllib.request.proxy_bypass(parts.hostname or ""):
            return ""
        return urlsplit(proxy if "://" in proxy else f"//{proxy}").netloc.rpartition("@")[2]

    def load_certificates(self) -> None:
        """Load certificates now, so that an AgentError is raised before the first request."""
        self._context_for("https://")

    def _login(self, parts: SplitResult) -> str:
        origin = origin_of(parts.geturl())
        user, at, _ = parts.netloc.rpartition("@")
        if at:
            name, _, password = user.partition(":")
            self.logins[origin] = _basic(unquote(name), unquote(password))
        elif origin not in self.logins and parts.hostname:
            login = _netrc_login(parts.hostname)
            if login:
                self.logins[origin] = login
        return self.logins.get(origin, "")

    def _context_for(self, url: str) -> ssl.SSLContext:
        verify = not self._is_trusted(urlsplit(url))
        with self._lock:  # loading all authorities is slow, and all threads start at once
            if verify not in self._contexts:
                self._contexts[verify] = self._new_context(verify)
            return self._contexts[verify]

    def _is_trusted(self, parts: SplitResult) -> bool:
        port = parts.port or (80 if parts.scheme == "http" else 443)
        trusted = (urlsplit("//" + name.rpartition("//")[2]) for name in self._trusted_hosts)
        return any(host.hostname == parts.hostname and host.port in (None, port) for host in trusted)

    def _new_context(self, verify: bool) -> ssl.SSLContext:
        named = [self._cafile, *(os.environ.get(name) for name in _CA_VARIABLES)]
        bundle = next((path for path in named if path), None)
        try:
            if not verify:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            elif bundle:
                is_directory = Path(bundle).is_dir()
                context = ssl.create_default_context(
                    cafile=None if is_directory else bundle, capath=bundle if is_directory else None
                )
            else:
                context = ssl.create_default_context()
                for path in CA_BUNDLES:
                    if Path(path).exists():
                        context.load_verify_locations(cafile=path)
            if self._client_cert:
                context.load_cert_chain(self._client_cert)
        except OSError as error:
            reason = f"the certificates can't be used: {error.strerror or error}"
            raise AgentError(reason, "set SSL_CERT_FILE or PIP_CERT to other certificates") from None
        return context


class _HttpsHandler(urllib.request.HTTPSHandler):
    def __init__(self, context_for: Callable[[str], ssl.SSLContext]) -> None:
        urllib.request.AbstractHTTPHandler.__init__(self)  # HTTPSHandler's own loads the system's certificates
        self._context_for = context_for

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(http.client.HTTPSConnection, request, context=self._context_for(request.full_url))


class _RedirectHandler(urllib.request.HTTPRedirectHandler):
    def __init__(self, check_encryption: Callable[[str], None]) -> None:
        self._check_encryption = check_encryption

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        old, new = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if new not in ("http", "https") or (old == "https" and new == "http"):
            raise RefusedAddress(f"it redirects from {old} to {new or 'no address'}")
        is_same_origin = origin_of(newurl) == origin_of(req.full_url)
        if not is_same_origin:
            self._check_encryption(newurl)
        redirected = super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)
        if redirected is None:
            return None
        login = req.unredirected_hdrs.get("Authorization")
        if not is_same_origin:
            redirected.headers.pop("Cookie", None)
        elif login:
            redirected.add_unredirected_header("Authorization", login)
        return redirected

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302  # part of urllib since Python 3.11


def is_final(error: Exception) -> bool:
    """Return True if another try would fail the same way, as after a 404. False for overload, timeouts and broken
    connections."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code < 500 and error.code not in (408, 416, 429)
    return isinstance(_cause(error), (ssl.SSLCertVerificationError, FileNotFoundError, RefusedAddress))


def explain(error: Exception, timeout: float | None = None) -> str:
    """Return what went wrong, as a clause for a message. `timeout`: the limit that may have passed, to be named."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the server says {error.code} {error.reason}"
    cause = _cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate can't be verified ({cause.verify_message}); set SSL_CERT_FILE to the authority's"
    if isinstance(cause, (socket.timeout, TimeoutError)) or "timed out" in str(cause):
        return "no answer in time" if timeout is None else f"silent for {timeout:g} s"
    if isinstance(cause, ssl.SSLError):
        return f"no TLS connection ({cause.reason or cause})"
    if isinstance(cause, socket.gaierror):
        return "its name can't be resolved"
    if isinstance(cause, ConnectionRefusedError):
        return "the connection is refused"
    if isinstance(cause, http.client.IncompleteRead):
        return "the connection broke"
    if isinstance(cause, http.client.HTTPException):
        return f"it doesn't answer in HTTP ({type(cause).__name__})"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__


def _cause(error: Exception) -> object:
    return error.reason if isinstance(error, urllib.error.URLError) else error


def _proxies(proxy: str | None) -> dict[str, str]:
    proxies = {"http": proxy, "https": proxy} if proxy else urllib.request.getproxies()
    other = proxies.get("all", "")
    if other and other.partition("://")[0].lower() not in ("socks4", "socks5", "socks5h"):
        proxies = {"http": other, "https": other, **proxies}
    return proxies


def _basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def _netrc_login(host: str) -> str:
    named = os.environ.get("NETRC")
    for path in [named] if named else ["~/.netrc", "~/_netrc"]:
        try:
            file = os.path.expanduser(path)  # noqa: PTH111  # Path.expanduser raises without a home
            login = netrc.netrc(file).authenticators(host)
        except (OSError, netrc.NetrcParseError, ValueError):
            continue
        if login:
            return _basic(login[0] or "", login[2] or "")
    return ""
