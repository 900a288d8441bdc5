"""What pip on this machine is set to: its files in its own order, then PIP_* of the environment.

With credentials where an index URL holds them: the answer goes to whoever asked, and into no log.
"""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path
from typing import Any

from ipexctl.node.common.answer import answer


def files() -> list[Path]:
    """pip's configuration files, weakest first."""
    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    system = [path for path in os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep) if path]
    found = [Path(path) / "pip" / "pip.conf" for path in system]
    found.append(Path("/etc/pip.conf"))
    if not (named and Path(named).exists()):
        own = os.environ.get("XDG_CONFIG_HOME") or home("~/.config")
        found += [Path(home("~/.pip/pip.conf")), Path(own) / "pip" / "pip.conf"]
    found.append(Path(sys.prefix) / "pip.conf")
    if named:
        found.append(Path(home(named)))
    return found


def home(path: str) -> str:
    """~ at the front is the account's home, where it has one."""
    try:
        return str(Path(path).expanduser()) if path.startswith("~") else path
    except RuntimeError:
        return path


def read() -> tuple[dict[str, str], list[dict[str, str]]]:
    """Option -> text as written, and the files that can't be read."""
    sections: dict[str, dict[str, str]] = {"global": {}, "download": {}, "install": {}}
    unread = []
    for path in files():
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(path.read_text(encoding="utf-8", errors="replace"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            unread.append({"path": str(path), "reason": error.strerror or str(error)})
            continue
        except configparser.Error:
            # Its own words quote the line, which may hold a password.
            unread.append({"path": str(path), "reason": "not a configuration file pip can read"})
            continue
        for section, values in sections.items():
            if parser.has_section(section):
                values.update((plain(name), value) for name, value in parser.items(section))
    merged = {**sections["global"], **sections["download"], **sections["install"]}
    merged.update((plain(name[4:]), value) for name, value in os.environ.items() if name.startswith("PIP_") and value)
    return merged, unread


def plain(name: str) -> str:
    """index_url, INDEX_URL and --index-url are one option."""
    name = name.lower().replace("_", "-")
    return name[2:] if name.startswith("--") else name


def settings() -> dict[str, Any]:
    values, unread = read()

    def one(name: str) -> str | None:
        return (values.get(name) or "").strip() or None

    def many(name: str) -> list[str]:
        return (values.get(name) or "").split()

    cert = one("cert") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    client_cert = one("client-cert")
    return {
        "index_url": one("index-url"),
        "extra_index_urls": many("extra-index-url"),
        "find_links": [home(link) for link in many("find-links")],
        "no_index": (one("no-index") or "").lower() in ("y", "yes", "t", "true", "on", "1"),
        "trusted_hosts": many("trusted-host"),
        "cert": home(cert) if cert else None,
        "client_cert": home(client_cert) if client_cert else None,
        "proxy": one("proxy"),
        "unread": unread,
    }


def main(action: str) -> int:
    return answer({"read": lambda *_: settings()}[action])
