"""The hosts and wheels with which the commands of pages run."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from doc_shell import Shell
from ipexctl.addons.lab import lab_slurm
from ipexctl.addons.lab.faults import ssh_argv
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from ipexctl.errors import UserError
from lab_run_helpers import IMPI, session_dir, stack_with, wheels_from_pypi
from page_scenes import CLUSTER, Scene
from tiny_wheels import write_stack, write_wheel

ACCOUNT_SETUP = """\
mkdir -p .config/pip
printf '%s\\n' '[global]' 'no-index = true' 'find-links =' 'extra-index-url =' > .config/pip/pip.conf
printf '%s\\n' '#!/bin/sh' 'touch "$1/ready"' > fill
chmod 755 fill
"""
"""The pip settings of this machine must not apply to the account on the hosts; and one more program."""
ROOT_SETUP = """\
isa="avx2 avx512f avx512dq avx512cd avx512bw avx512vl avx512_vnni avx512_bf16 amx_tile amx_int8 amx_bf16"
sed "s/^flags.*/& $isa/" /proc/cpuinfo > /run/cpuinfo
mount --bind /run/cpuinfo /proc/cpuinfo
mkdir -p /data /nfs /scratch/me/data
date > /data/log.txt
tar -cf /nfs/data.tar -C /scratch/me data
rmdir /scratch/me/data
chown ipex /scratch/me
cp /bin/bash /usr/local/bin/rootly
chmod 4755 /usr/local/bin/rootly
cat > /usr/local/bin/sudo <<'END'
#!/usr/local/bin/rootly -p
exec setpriv --reuid "$3" --regid "$3" --init-groups -- "${@:5}"
END
printf '%s\\n' '#!/bin/sh' 'cat > mail' > /usr/local/bin/mail
chmod 755 /usr/local/bin/sudo /usr/local/bin/mail
"""
"""Things that pages expect on hosts: CPU flags, directories with data, sudo -n -u USER -- COMMAND, and mail."""
_numbers = itertools.count()


@dataclass(frozen=True)
class PageHosts:
    """Hosts that ssh knows as node1 … node4, and the available wheels."""

    lab: Lab
    wheel_dir: Path
    small_wheels: Path

    def shell(self, context: Scene, place: Path) -> Shell:
        config = place / "ssh_config"
        gateway = f"Host gateway\n  HostName {self.lab.hosts[3].address}\n  User ipex\n\n"
        config.write_text(gateway + self.lab.hosts[0].dir.parent.joinpath("ssh_config").read_text())
        env = wheels_of(self.small_wheels if context.home else self.wheel_dir)
        if context.home:
            env["IPEXCTL_HOME"] = f"/home/ipex/page{next(_numbers)}"
        shell = Shell(place, env, ssh_config=config)
        names = [f"node{number + 1}" for number in range(context.hosts)]
        line = f"node[1-{context.hosts}]" if context.slots else "\n".join(names)
        shell.write("hostfile", f"{line}{context.slots}\n")
        return shell


def wheels_of(directory: Path) -> dict[str, str]:
    """Settings of pip that allow only this directory."""
    return {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(directory)}


@pytest.fixture(scope="module")
def wheel_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = session_dir(tmp_path_factory)
    directory = stack_with(wheels_from_pypi(base, IMPI, "mpi4py"), base / "pages-wheel_dir")
    for wheel in (base / "from-pypi").glob("mpi4py-*.whl"):
        with contextlib.suppress(FileExistsError):  # another process of this session uses the directory, too
            (directory / wheel.name).hardlink_to(wheel)
    for name in ("transformers", "accelerate", "tqdm"):
        write_wheel(directory, name, "1.0.0", files={f"{name}.py": ""})
    return directory


@pytest.fixture(scope="module")
def small_wheels(wheel_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several stacks, for pages that install more than one; mpirun is a stand-in, too."""
    directory = tmp_path_factory.mktemp("small_wheels")
    write_stack(directory, torch="2.13.0", ipex=None)
    write_stack(directory, torch="2.8.0", ipex="2.8.0")
    write_stack(directory, torch="2.7.0", ipex="2.7.0", oneccl="2.7.0")
    for wheel in wheel_dir.glob("t*-1.0.0-*.whl"):
        (directory / wheel.name).hardlink_to(wheel)
    return directory


@pytest.fixture(scope="module")
def page_hosts(
    make_lab: Callable[[LabSpec], Lab], wheel_dir: Path, small_wheels: Path, tmp_path_factory: pytest.TempPathFactory
) -> PageHosts:
    lab = make_lab(LabSpec(hosts=4))
    for host in lab.hosts:
        for login, text in (("ipex", ACCOUNT_SETUP), ("root", ROOT_SETUP)):
            subprocess.run([*ssh_argv(host), "-l", login, "sh -e"], input=text.encode(), check=True, timeout=60)
    made = PageHosts(lab, wheel_dir, small_wheels)
    shell = made.shell(Scene("", CLUSTER, hosts=4), tmp_path_factory.mktemp("ready"))
    shell.type("ipexctl install")
    return made


@pytest.fixture
def own_lab() -> Iterator[str]:
    name = f"pagelab{os.getpid()}"
    yield name
    subprocess.run([sys.executable, "-m", "ipexctl", "lab", "down", "--lab", name], capture_output=True, check=False)


@pytest.fixture(scope="module")
def slurm_programs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Left out where a lab cannot have Slurm: its programs are neither on this machine nor in reach of apt-get."""
    if os.geteuid() != 0:
        pytest.skip("a lab needs root")
    try:
        lab_slurm.download_packages(tmp_path_factory.mktemp("slurm") / "packages")
    except UserError as missing:
        pytest.skip(f"no Slurm here: {missing.message.splitlines()[0]}")
