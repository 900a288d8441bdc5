"""Read this host's settings of pip: its configuration files in pip's order, then PIP_* variables.

uv reads none of them, but a cluster without internet names its index there. URLs of indexes may contain logins, so the
reply must not be logged.
"""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path

from ipexctl.node.common import macos
from ipexctl.node.common.answer import answer
from ipexctl.node.env.env_replies import PipSettings


def files() -> list[Path]:
    """Return pip's configuration files, lowest precedence first; they need not exist."""
    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    system = [path for path in os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep) if path]
    paths = [Path(path) / "pip" / "pip.conf" for path in system]
    of_machine, of_account = macos.pip_files(expand_home("~"))
    paths += [Path("/etc/pip.conf"), *map(Path, of_machine)]
    if not (named and Path(named).exists()):
        own = os.environ.get("XDG_CONFIG_HOME") or expand_home("~/.config")
        paths += [Path(expand_home("~/.pip/pip.conf")), Path(own) / "pip" / "pip.conf", *map(Path, of_account)]
    paths.append(prefix() / "pip.conf")
    if named:
        paths.append(Path(expand_home(named)))
    return paths


def prefix() -> Path:
    """Return this Python's prefix as pip sees it. Before `import site`, `sys.prefix` is not the venv's."""
    of_venv = Path(sys.executable).parent.parent
    return of_venv if (of_venv / "pyvenv.cfg").is_file() else Path(sys.prefix)


def expand_home(path: str) -> str:
    """Return the path with `~` as the account's home; unchanged if the account has none."""
    return os.path.expanduser(path)  # noqa: PTH111  # Path.expanduser raises without a home


def read_options() -> dict[str, str]:
    """Return option → value as written. Files that can't be read are skipped."""
    sections: dict[str, dict[str, str]] = {"global": {}, "download": {}, "install": {}}
    for path in files():
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(path.read_text(encoding="utf-8", errors="replace"))
        except (OSError, configparser.Error):
            continue
        for section, values in sections.items():
            if parser.has_section(section):
                values.update((normalize_option(name), value) for name, value in parser.items(section))
    merged = {**sections["global"], **sections["download"], **sections["install"]}
    merged.update(
        (normalize_option(name[4:]), value) for name, value in os.environ.items() if name.startswith("PIP_") and value
    )
    return merged


def normalize_option(name: str) -> str:
    """Return `index-url` for index_url, INDEX_URL and --index-url."""
    name = name.lower().replace("_", "-")
    return name[2:] if name.startswith("--") else name


def settings() -> PipSettings:
    """Return the settings that concern indexes and connections; paths have their `~` replaced."""
    values = read_options()

    def get_text(name: str) -> str | None:
        return (values.get(name) or "").strip() or None

    def get_list(name: str) -> tuple[str, ...]:
        return tuple((values.get(name) or "").split())

    cert = get_text("cert") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    client_cert = get_text("client-cert")
    return PipSettings(
        index_url=get_text("index-url"),
        extra_index_urls=get_list("extra-index-url"),
        find_links=tuple(map(expand_home, get_list("find-links"))),
        no_index=(get_text("no-index") or "").lower() in ("y", "yes", "t", "true", "on", "1"),
        trusted_hosts=get_list("trusted-host"),
        cert=expand_home(cert) if cert else None,
        client_cert=expand_home(client_cert) if client_cert else None,
        proxy=get_text("proxy"),
    )


def main(action: str) -> int:
    """Answer a call of `env.pip_settings`: read pip's settings here."""
    return answer({"read": lambda *_: settings()}[action])
