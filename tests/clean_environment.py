"""Gives the tests an environment of their own: they see nothing of the account that calls them.

In: the caller's variables, signal dispositions and umask. Out: the same in every call. A variable is kept only if it is
listed here. HOME is a new directory, so that no file below the caller's counts: config.toml, cached answers of indexes,
settings of pip, uv and git. Ignored signals are reset: a script that starts `sh tests/run.sh &` hands an ignored SIGINT
on to every process of the tests. ssh reads the account's ~/.ssh/config whatever HOME is, so the first `ssh` on PATH is
a script that reads none unless one is named, and the first `python3` is no script.

One exception, by name: where packages come from (pip's and uv's settings, certificates, proxies). Tests marked `stack`
have them, and programs that tests start with `package_environ`; all others must pass without.

pytest loads this file as a plugin (`addopts` of pyproject.toml) before any other file of the tests. `tests/run.sh`
applies it one process earlier, so that variables that count when Python starts (PYTHONPATH, LANG) are clean there too.
"""

from __future__ import annotations

import atexit
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

MARK = "IPEXCTL_TESTS_HOME"
"""The variable with the tests' own home: its process and all below it are clean already."""
PACKAGES = "IPEXCTL_TESTS_PACKAGES"
"""The variable with the settings for packages, as JSON."""

_KEPT = frozenset(("PATH", "TMPDIR", "IPEXCTL_GOLDEN"))
"""The machine's programs, the disk for the tests, and the call's own switches."""
_KEPT_PREFIXES = ("IPEXCTL_TESTS_", "PYTEST_")
_OWN = {"LANG": "C.UTF-8", "TERM": "xterm-256color", "SHELL": "/bin/sh", "PIP_CONFIG_FILE": os.devnull}
_OF_PACKAGES = re.compile(r"(?i)(pip|uv)_.+|.+_proxy|ssl_cert_(file|dir)|requests_ca_bundle|curl_ca_bundle|netrc")
_KEPT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGKILL, signal.SIGSTOP)
"""Python itself ignores the first two, and resets them for its children."""
_UMASK = 0o022


def clean_environ(environ: Mapping[str, str], home: Path, account: str) -> dict[str, str]:
    """The variables of the tests for these of the caller. Pure, but for the question which directories there are."""
    kept = {name: value for name, value in environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    pythons = environ.get("PYENV_ROOT") or os.path.join(environ.get("HOME", ""), ".pyenv")
    if os.path.isabs(pythons) and os.path.isdir(pythons):
        kept["PYENV_ROOT"] = pythons  # the machine's other Pythons; programs of pyenv look below HOME without it
    kept["PATH"] = f"{home}/bin:{environ.get('PATH', os.defpath)}"
    own = {"HOME": str(home), "USER": account, "LOGNAME": account, MARK: str(home)}
    return {**kept, **_OWN, **own, PACKAGES: json.dumps(_package_settings(environ), sort_keys=True)}


def _package_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables and files that say where packages come from; downloads are shared with its cache."""
    settings = {name: value for name, value in environ.items() if _OF_PACKAGES.fullmatch(name)}
    home = environ.get("HOME", "")
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    config = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    found = {
        "PIP_CONFIG_FILE": next(filter(os.path.isfile, (f"{config}/pip/pip.conf", f"{home}/.pip/pip.conf")), None),
        "UV_CONFIG_FILE": next(filter(os.path.isfile, (f"{config}/uv/uv.toml",)), None),
        "PIP_CACHE_DIR": f"{cache}/pip" if os.path.isabs(cache) else None,
    }
    return {**{name: value for name, value in found.items() if value}, **settings}


def package_settings() -> dict[str, str]:
    """The variables with which a program finds packages where this machine's own pip and uv look."""
    settings: dict[str, str] = json.loads(os.environ.get(PACKAGES, "{}"))
    return {"PIP_CONFIG_FILE": "", **settings}


def package_environ() -> dict[str, str]:
    """The environment for such a program."""
    return {**os.environ, **package_settings()}


def reset_signals() -> None:
    """No signal is ignored or blocked, and Ctrl-C raises KeyboardInterrupt, as in a program started from a terminal."""
    for number in signal.valid_signals():
        if number not in _KEPT_SIGNALS and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def apply() -> Path | None:
    """Give this process the tests' variables and umask; returns the new home, which the caller removes.

    None: it has them already, from the process above.
    """
    if os.environ.get(MARK):
        return None
    os.umask(_UMASK)
    home = Path(tempfile.mkdtemp(prefix="ipexctl-tests-"))
    (home / "bin").mkdir()
    _write_ssh(home / "bin/ssh")
    _link_python(home / "bin/python3")
    clean = clean_environ(os.environ, home, pwd.getpwuid(os.getuid()).pw_name)
    _set_variables(clean)
    return home


def _write_ssh(path: Path) -> None:
    if ssh := shutil.which("ssh"):
        ssh = shlex.quote(ssh)
        named = f'for word in "$@"; do case $word in -F*) exec {ssh} "$@" ;; esac; done'
        # The system's file stays: the pages are tested with one of their own there.
        system = "config=/etc/ssh/ssh_config; [ -r $config ] || config=/dev/null"
        path.write_text(f'#!/bin/sh\n{named}\n{system}\nexec {ssh} -F $config "$@"\n')
        path.chmod(0o755)


def _link_python(path: Path) -> None:
    """In place of pyenv's `python3`: its script runs 70 ms, more than the agent that tests start a thousand times."""
    found = shutil.which("python3") or ""
    if "/shims/" in found:
        path.symlink_to(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))


def pytest_load_initial_conftests() -> None:
    """pytest's hook before it reads any file of the tests."""
    reset_signals()
    if home := apply():
        atexit.register(_remove, home, os.getpid())


def _remove(home: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child of a test also ends
        shutil.rmtree(home, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """The real wheels of tests/stack come from wherever this machine's pip looks."""
    if item.get_closest_marker("stack") is None:
        return (yield)
    with _variables(package_environ()):
        return (yield)


@contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    _set_variables(wanted)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(wanted: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    os.environ.update(wanted)
