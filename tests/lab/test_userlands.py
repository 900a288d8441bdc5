"""Hosts with other login shells, and one with no programs but busybox's. docs/doctor.md lists what works on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_helpers import ipexctl
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab, LabHost
from ipexctl.addons.lab.lab_system import in_host, init_of
from lab_run_helpers import by_rank, new_cluster
from needs import find

pytestmark = pytest.mark.lab
_BUSYBOX = "/usr/local/bin/ash"


def put_busybox(host: LabHost) -> None:
    """Copy this machine's busybox, which may be in a directory that the host does not see."""
    source, there = find("busybox"), Path(f"/proc/{init_of(host.netns)}/root{_BUSYBOX}")
    assert source is not None
    there.write_bytes(Path(source).read_bytes())
    there.chmod(0o755)


def log_in_with(host: LabHost, shell: str) -> None:
    in_host(host, 'sed -i "s,^\\($LOGIN:.*:\\)[^:]*$,\\1$1," /etc/passwd', (shell,))


@pytest.mark.parametrize(
    "shell",
    [
        pytest.param("dash", marks=pytest.mark.needs("dash")),
        pytest.param("ash", marks=pytest.mark.needs("busybox")),
        pytest.param("fish", marks=pytest.mark.needs("fish")),
        pytest.param("tcsh", marks=pytest.mark.needs("tcsh")),
    ],
)
def test_everything_works_with_this_login_shell(make_lab: Callable[[LabSpec], Lab], tmp_path: Path, shell: str) -> None:
    lab = make_lab(LabSpec(hosts=2))
    for host in lab.hosts:
        if shell == "ash":
            put_busybox(host)
        log_in_with(host, _BUSYBOX if shell == "ash" else find(shell) or "")
    cluster = new_cluster(lab, tmp_path)
    cluster.write("train.py", "import os\nprint(os.environ['IPEXCTL_RANK'], os.environ['SHELL'])\n")
    found = json.loads(cluster.call("doctor", "-H", lab.hostfile, "--json").out)
    assert [(host["facts"]["complete"], host["reason"]) for host in found["hosts"]] == [(True, "")] * 2
    ran = json.loads(cluster.good("exec", "-H", lab.hostfile, "--json", "--", "printf", "%s", "it's $HOME; *"))
    assert {host["stdout"] for host in ran["hosts"]} == {"it's $HOME; *"}
    cluster.good("sync", "-H", lab.hostfile)
    done = cluster.run("--backend", "none", "--python", "/usr/bin/python3", "train.py")
    assert {rank: Path(line.split()[1]).name for rank, (line,) in by_rank(done.out).items()} == {0: shell, 1: shell}


@pytest.mark.needs("busybox")
def test_a_host_with_busybox_alone_is_examined_and_what_it_lacks_is_named(
    make_lab: Callable[[LabSpec], Lab], tmp_path: Path
) -> None:
    lab = make_lab(LabSpec(hosts=1))
    put_busybox(lab.hosts[0])
    in_host(
        lab.hosts[0],
        """set -e
        mkdir -p /srv/only && cd /srv/only
        mkdir -p bin sbin usr/bin usr/sbin etc home tmp run proc sys dev lib lib64 usr/lib
        for shared in proc sys dev tmp run home lib lib64 usr/lib; do mount --rbind "/$shared" "$shared"; done
        cp "$1" bin/busybox; cp /etc/passwd /etc/group etc
        chroot . /bin/busybox --install -s
        printf 'Match User %s\\n  ChrootDirectory /srv/only\\n' "$LOGIN" >>/etc/ssh/sshd_config
        kill -HUP "$(cat /run/sshd.pid)"
        """,
        (_BUSYBOX,),
    )
    log_in_with(lab.hosts[0], "/bin/ash")
    (host,) = json.loads(ipexctl("doctor", "-H", lab.hostfile, "--json").out)["hosts"]
    assert (host["facts"]["complete"], host["facts"]["cut"]) == (True, [])
    assert host["facts"]["cpu"]["cores"]
    assert "python.none" in {finding["id"] for finding in host["findings"]}
    listed = ipexctl("exec", "-H", lab.hostfile, "--", "readlink", "/bin/sh")
    assert listed.out.strip().endswith("busybox")
    (tmp_path / "train.py").write_text("pass")
    refused = ipexctl("sync", "-H", lab.hostfile, tmp_path)
    assert refused.rc == 1
    assert "Python" in refused.out + refused.err
