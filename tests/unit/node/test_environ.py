"""HOME, USER and SHELL of an account, with and without an entry in passwd; a file of --setup that hangs."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from ipexctl.node.common import environ
from ipexctl.node.common.environ import SetupError, account_variables, source_setup


def test_variables_of_an_account_in_passwd_come_from_passwd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/of/node0")
    account = pwd.getpwuid(os.getuid())
    assert (account_variables()["HOME"], account_variables()["USER"]) == (account.pw_dir, account.pw_name)


def test_an_account_without_passwd_entry_keeps_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", no_entry)
    monkeypatch.setenv("HOME", "/work")
    monkeypatch.setenv("SHELL", "/bin/sh")
    for name in ("USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    assert account_variables() == {"HOME": "/work", "SHELL": "/bin/sh"}


def test_a_setup_file_that_hangs_is_ended_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environ, "SETUP_FILE", 0.5)
    setup = tmp_path / "setvars.sh"
    setup.write_text("exec sleep 600\n")
    with pytest.raises(SetupError) as caught:
        source_setup(str(setup), dict(os.environ))
    assert caught.value.strerror == f"{setup} could not be sourced: it took longer than 0.5 s"
