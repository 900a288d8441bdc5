"""uv makes a lock here: it is told where to look by its environment, and what it says is handed back unread.

What it needs for that lies in a directory of its own under the home, and is gone afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, Dict
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.stop import answer_until_stopped
from ipexctl.node.env.uv import unpack_uv

KEPT = 16384
STALE = 86400
BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")
Json = Dict[str, Any]


class Work:
    """A directory and a process of ours, both gone at the end, also when we are told to stop."""

    def __init__(self, home: str) -> None:
        tmp = Path(home).expanduser() / "tmp"
        tmp.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in tmp.glob("lock-*"):  # by one that was killed
            if time.time() - left.lstat().st_mtime > STALE:
                shutil.rmtree(str(left), ignore_errors=True)
        self.place = Path(tempfile.mkdtemp(prefix="lock-", dir=str(tmp)))
        self.process: subprocess.Popen[str] | None = None

    def clear(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(str(self.place), ignore_errors=True)


def readable(source: Json, place: Path) -> Json:
    """uv takes a comma for the end of a directory's name, and # and ? for that of a URL: such a one by another name."""
    url = source["url"]
    path = unquote(urlsplit(url).path) if url.startswith("file:") else url
    if source["kind"] != "links" or "://" in path or not re.search("[,#?%]", path):
        return source
    link = place / f"links-{os.urandom(4).hex()}"
    link.symlink_to(Path(path).expanduser().absolute())
    return dict(source, url=str(link))


def environment(request: Json, place: Path, settings: Json) -> dict[str, str]:
    """The account's own, without what it tells uv otherwise; logins by name of the index, other secrets by URL."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PYTHON", "VIRTUAL_ENV"))}
    env.update(
        UV_CACHE_DIR=str(place / "cache"),
        TMPDIR=str(place),
        UV_INDEX_STRATEGY="unsafe-best-match",
        UV_PRERELEASE="explicit",
        UV_HTTP_TIMEOUT="20",
        UV_HTTP_RETRIES="1",
        UV_PYTHON_DOWNLOADS="never",
        UV_NO_PROGRESS="1",
        NO_COLOR="1",
    )
    links = [source["url"] for source in request["sources"] if source["kind"] == "links"]
    links += [str(place / "links")] if request.get("kept") else []
    if links:
        env["UV_FIND_LINKS"] = ",".join(links)
    bundle = settings.get("cert") or os.environ.get("SSL_CERT_FILE")
    bundle = bundle or next((known for known in BUNDLES if Path(known).exists()), None)
    if bundle:
        env["SSL_CERT_DIR" if Path(bundle).is_dir() else "SSL_CERT_FILE"] = bundle
    if settings.get("client_cert"):
        env["SSL_CLIENT_CERT"] = settings["client_cert"]
    if settings.get("proxy"):
        proxy: str = settings["proxy"]
        env.update(dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), proxy))
    if settings.get("trusted_hosts"):
        env["UV_INSECURE_HOST"] = " ".join(settings["trusted_hosts"])
    return env


def configuration(request: Json, env: dict[str, str]) -> str:
    """uv's configuration file: the indexes by name, their logins in the environment.

    A 403 is an index's word for what it doesn't have: which of them want a login is known from asking them.
    """
    lines = []
    for number, source in enumerate(s for s in request["sources"] if s["kind"] == "index"):
        url = source["url"]
        parts = urlsplit(url)
        user, at, place = parts.netloc.rpartition("@")
        if at:
            name, _, password = user.partition(":")
            url = urlunsplit(parts._replace(netloc=place))
            env[f"UV_INDEX_S{number}_USERNAME"] = unquote(name)
            env[f"UV_INDEX_S{number}_PASSWORD"] = unquote(password)
        elif not parts.scheme:
            url = "file://" + quote(str(Path(url).expanduser().absolute()))
        lines += [
            "[[index]]",
            f'name = "s{number}"',
            f"url = {json.dumps(url)}",
            f"default = {str(not number).lower()}",
        ]
        lines += ["ignore-error-codes = [403, 404]", ""] if parts.scheme.startswith("http") else [""]
    return "\n".join(lines) if lines else "no-index = true\n"


def compile_lock(request: Json, work: Work) -> Json:
    place = work.place
    settings = request.get("settings") or {}
    uv = request["uv"]
    if not isinstance(uv, str):
        uv = unpack_uv(Path(uv["store"]).expanduser(), uv, place)
    if request.get("kept"):
        (place / "links").mkdir()
        for file in request["kept"]["files"]:
            found = Path(request["kept"]["store"]).expanduser() / file["sha256"] / file["name"]
            (place / "links" / file["name"]).symlink_to(found)
    request = dict(request, sources=[readable(source, place) for source in request["sources"]])
    env = environment(request, place, settings)
    config = place / "uv.toml"
    config.write_text(configuration(request, env), encoding="utf-8")
    for name in ("requirements", "constraints"):
        (place / f"{name}.txt").write_text("".join(line + "\n" for line in request[name]), encoding="utf-8")
    argv = [
        uv,
        "pip",
        "compile",
        "--config-file",
        str(config),
        "--format",
        "pylock.toml",
        "--no-header",
        "--no-sources",
    ]
    argv += ["--only-binary", ":all:", "--python", sys.executable]
    argv += ["--python-version", request["python"], "--python-platform", request["platform"]]
    argv += ["--constraints", str(place / "constraints.txt")] if request["constraints"] else []
    argv.append(str(place / "requirements.txt"))
    try:
        work.process = subprocess.Popen(
            argv,
            cwd=str(place),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
        text, said = work.process.communicate(timeout=request.get("timeout") or 300)
    except subprocess.TimeoutExpired:
        raise AgentError("uv found no answer in time", "an index is very slow: leave it out") from None
    except PermissionError:
        raise AgentError(
            f"uv can't be run in {place}: no programs may be run there (noexec)", "--home DIR elsewhere"
        ) from None
    except OSError as error:
        raise AgentError(f"uv can't be run ({error.strerror or error})") from None
    if work.process.returncode:
        return {"pylock": None, "said": said[-KEPT:].replace(str(place) + "/", "")}
    return {"pylock": text, "said": said[-KEPT:], "on_disk": on_disk(text)}


def on_disk(text: str) -> Json:
    """Size and hash of each wheel of the lock that lies on this machine, by its URL."""
    found = {}
    for word in text.split('"'):
        if word.startswith("file://") and word.endswith(".whl"):
            path = Path(unquote(urlsplit(word).path)).resolve()
            digest = hashlib.sha256()
            with path.open("rb") as file:
                for block in iter(lambda: file.read(1 << 20), b""):
                    digest.update(block)
            found[word] = {"path": str(path), "sha256": digest.hexdigest(), "size": path.stat().st_size}
    return found


def compile_request(request: Json, _: BinaryIO) -> Json:
    work = None
    try:
        work = Work(request["home"])
        return compile_lock(request, work)
    except OSError as error:
        raise AgentError(f"{error.strerror or error}: {error.filename or request['home']}") from None
    except zipfile.BadZipFile:
        raise AgentError("uv's wheel is damaged") from None
    finally:
        if work is not None:
            work.clear()


def main(action: str) -> int:
    return answer_until_stopped({"compile": compile_request}[action])
