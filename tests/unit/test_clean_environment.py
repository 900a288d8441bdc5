"""The tests see nothing of the account that calls them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clean_environment import MARK, PACKAGES, clean_environ, package_environ

TESTS = Path(__file__).parents[1]
HOSTILE = {
    "COLUMNS": "30", "FORCE_COLOR": "1", "GIT_DIR": "/g", "HTTPS_PROXY": "http://proxy:1", "IPEXCTL_HOME": "/odd",
    "IPEXCTL_HOSTFILE": "/h", "IPEXCTL_PPN": "7", "IPEXCTL_RUN": "r", "LANG": "de_DE.UTF-8", "LANGUAGE": "de",
    "LC_ALL": "C", "LD_PRELOAD": "", "LINES": "4", "MASTER_ADDR": "10.0.0.1", "NO_COLOR": "1",
    "OMP_NUM_THREADS": "1", "PBS_NODEFILE": "/n", "PIP_FIND_LINKS": "/wheels", "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONOPTIMIZE": "1", "PYTHONPATH": "/p", "SLURM_JOB_NODELIST": "n[1-2]", "SSH_AUTH_SOCK": "/s",
    "SSL_CERT_FILE": "/c", "TERM": "dumb", "UV_INDEX_URL": "http://u/", "XDG_CACHE_HOME": "/x",
    "XDG_CONFIG_HOME": "/y",
}  # fmt: skip


def test_only_listed_variables_are_kept(tmp_path: Path) -> None:
    of_tests = {"PATH": "/bin", "TMPDIR": "/scratch", "IPEXCTL_GOLDEN": "write", "IPEXCTL_TESTS_SEED": "3"}
    clean = clean_environ({**HOSTILE, **of_tests, "HOME": str(tmp_path)}, Path("/own"), "me")
    assert {name: clean[name] for name in of_tests} == {**of_tests, "PATH": "/own/bin:/bin"}
    assert set(clean) - set(of_tests) == {
        *("HOME", "LANG", "LOGNAME", "PIP_CONFIG_FILE", "SHELL", "TERM", "USER"), MARK, PACKAGES
    }  # fmt: skip
    assert (clean["HOME"], clean["USER"], clean["LANG"], clean["PIP_CONFIG_FILE"]) == (
        "/own",
        "me",
        "C.UTF-8",
        os.devnull,
    )
    assert (clean["TERM"], clean[MARK]) == ("xterm-256color", "/own")


def test_settings_for_packages_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").touch()
    caller = {"HOME": str(tmp_path), **HOSTILE}
    del caller["XDG_CONFIG_HOME"], caller["XDG_CACHE_HOME"]
    expected = {
        "HTTPS_PROXY": "http://proxy:1",
        "PIP_CACHE_DIR": f"{tmp_path}/.cache/pip",
        "PIP_CONFIG_FILE": f"{tmp_path}/.config/pip/pip.conf",
        "PIP_FIND_LINKS": "/wheels",
        "SSL_CERT_FILE": "/c",
        "UV_INDEX_URL": "http://u/",
    }
    assert json.loads(clean_environ(caller, Path("/own"), "me")[PACKAGES]) == expected
    monkeypatch.setenv(PACKAGES, json.dumps(expected))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert expected.items() <= package_environ().items()
    monkeypatch.delenv(PACKAGES)
    assert package_environ()["PIP_CONFIG_FILE"] == "", "no file of the account; the machine's own counts"


def test_pyenv_below_the_callers_home_is_found(tmp_path: Path) -> None:
    (tmp_path / ".pyenv").mkdir()
    assert clean_environ({"HOME": str(tmp_path)}, Path("/own"), "me")["PYENV_ROOT"] == f"{tmp_path}/.pyenv"
    assert "PYENV_ROOT" not in clean_environ({"HOME": "/nothing"}, Path("/own"), "me")
    assert "PYENV_ROOT" not in clean_environ({}, Path("/own"), "me")


_SEEN = """
import json, os, signal, sys
json.dump({"ignored": [n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN],
           "home": os.environ["HOME"], "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
           "umask": os.umask(0), "path": sys.path,
           "variables": sorted(os.environ)}, sys.stdout)
"""


def test_pytest_and_its_programs_are_clean_whatever_the_caller_is(tmp_path: Path) -> None:
    """A pytest of its own, called with HOSTILE variables, ignored and blocked signals and an umask of 0."""
    test = tmp_path / "test_inner.py"
    test.write_text(
        "import json, os, pathlib, signal, subprocess, sys\n"
        "def test_inner():\n"
        "    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        f"    seen = subprocess.run([sys.executable, '-c', {_SEEN!r}], capture_output=True, check=True).stdout\n"
        f"    pathlib.Path({str(tmp_path / 'seen')!r}).write_bytes(seen)\n"
    )
    caller = tmp_path / "caller.py"
    caller.write_text(
        "import os, signal, sys\n"
        "for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "os.umask(0)\n"
        "os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    pytest_argv = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "clean_environment", str(test)]
    done = subprocess.run(
        [sys.executable, str(caller), *pytest_argv],
        env={
            **HOSTILE,
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(TESTS),
            "PYTHONOPTIMIZE": "",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen: dict[str, Any] = json.loads((tmp_path / "seen").read_text())
    assert set(seen["ignored"]) == {signal.SIGPIPE, signal.SIGXFSZ}, "which Python itself ignores"
    assert (seen["blocked"], oct(seen["umask"])) == ([], "0o22")
    assert str(TESTS) not in seen["path"]
    assert not {*HOSTILE, "LC_CTYPE"} - {"LANG", "TERM"} & set(seen["variables"])
    assert seen["home"] != str(tmp_path)
    assert not Path(seen["home"]).exists(), "pytest removes what it made"


@pytest.mark.needs("ssh")
def test_ssh_reads_no_settings_of_the_account(tmp_path: Path) -> None:
    """The named file counts; without one, not even the machine's own."""
    named = tmp_path / "config"
    named.write_text("Host *\n  Port 2222\n")
    for options, port in (((), "22"), (("-F", str(named)), "2222"), ((f"-F{named}",), "2222")):
        shown = subprocess.run(["ssh", *options, "-G", "some-host"], capture_output=True, text=True, check=True).stdout
        assert f"port {port}\n" in shown
    assert shutil.which("ssh") == f"{Path.home()}/bin/ssh"


def test_this_session_has_a_home_of_its_own() -> None:
    assert os.environ[MARK] == os.environ["HOME"] == str(Path.home())
    assert Path.home().name.startswith("ipexctl-tests-")
