"""The line that copies a --data directory to hosts that lack it, run by a real shell with an ssh that runs it here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ipexctl.hosts.host import Host
from ipexctl.run.start.path_checks import copy_line

HOSTS = tuple(Host(f"n{number}", f"10.0.0.{number}", user="me", port=2222) for number in (1, 2, 3))


@pytest.fixture
def fake_ssh(tmp_path: Path) -> Path:
    """An ssh whose host 10.0.0.N has the directory `hosts/10.0.0.N` as its root for the paths of the test."""
    program = tmp_path / "bin/ssh"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\nhost=$5 line=$6\n[ \"$1 $2 $3 $4\" = '-l me -p 2222' ] || exit 9\n"
        f'mkdir -p {tmp_path}/hosts/$host && cd {tmp_path}/hosts/$host && exec sh -c "$line"\n'
    )
    program.chmod(0o755)
    return tmp_path


def run_line(directory: Path, line: str) -> None:
    path = f"{directory / 'bin'}:/usr/bin:/bin"
    subprocess.run(["sh", "-c", line], env={"PATH": path}, timeout=30, check=True)


def test_line_copies_from_a_host_that_has_it(fake_ssh: Path) -> None:
    source = fake_ssh / "hosts/10.0.0.1/d"
    source.mkdir(parents=True)
    (source / "file").write_text("x")
    run_line(fake_ssh, copy_line("d", HOSTS, ["n2", "n3"]) or "")
    assert len(list((fake_ssh / "hosts").glob("*/d/file"))) == 3


def test_hosts_with_different_ssh_settings_have_a_command_each(fake_ssh: Path) -> None:
    target = fake_ssh / "copied d"
    source = fake_ssh / f"hosts/10.0.0.2/{target}"
    source.mkdir(parents=True)
    hosts = (*HOSTS[:2], Host("here", "localhost"))
    line = copy_line(str(target), hosts, ["n1", "here"]) or ""
    assert "for host" not in line
    assert line.count("; ") == 1


def test_there_is_no_line_for_a_directory_that_is_nowhere() -> None:
    assert copy_line("/d", HOSTS, ["n1", "n2", "n3"]) is None
