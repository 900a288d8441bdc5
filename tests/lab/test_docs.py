"""Runs the commands of the pages in their order, and compares the output with the page.

`page_scenes` says where a page is executed and with which preparations; the real torch has a test beside the
real wheels, a checkout one beside the package. A block that isn't executed says why, above it in the page.
"""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from doc_blocks import PAGES, ROOT, Block, PageCommand, blocks
from doc_output import find_difference, matches_page
from doc_shell import FILES, LoginShell, Shell
from ipexctl.errors import UserError
from ipexctl.extras.lab import slurm
from ipexctl.extras.lab.labs import Lab, LabSpec, ssh_argv
from lab_run_helpers import IMPI, session_dir, stack_with, wheels_from_pypi
from message_data import missing
from page_scenes import (
    ALLOCATION,
    ALONE,
    BASTION,
    CLUSTER,
    LAB,
    LAB_SLURM,
    LOGIN,
    QUEUE,
    REASONS,
    SCENES,
    TRAIN,
    Scene,
    left_out,
    play,
    scenes,
    scenes_in,
)
from tiny_wheels import write_stack, write_wheel

ALL = [block for page in PAGES for block in blocks(page) if block.commands()]
PLAYS = [block for block in blocks(ROOT / "docs/playbooks.md") if block.language == "yaml"]
"""The playbook of docs/commands.md is played by test_bundled_playbooks.py."""
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
TASKS_ALONE = "- hosts: all\n  vars: {{archive: /nfs/data.tar}}\n  tasks:\n{}"
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
    directory = stack_with(wheels_from_pypi(base, IMPI), base / "pages-wheel_dir")
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
    for line in ("ipexctl trust", "ipexctl install"):
        shell.type(line)
    return made


@pytest.mark.lab
@pytest.mark.timeout(600)
@scenes(CLUSTER)
def test_pages_on_lab_hosts(context: Scene, page_hosts: PageHosts, tmp_path: Path) -> None:
    assert play(context, page_hosts.shell(context, tmp_path)) == []


@pytest.mark.timeout(600)
@scenes(ALONE)
def test_pages_on_localhost(context: Scene, wheel_dir: Path, tmp_path: Path) -> None:
    assert play(context, Shell(tmp_path, {**wheels_of(wheel_dir), "IPEXCTL_HOME": str(tmp_path / "ours")})) == []


@pytest.mark.lab
@scenes(BASTION)
def test_pages_behind_a_bastion(context: Scene, make_lab: Callable[[LabSpec], Lab], tmp_path: Path) -> None:
    lab = make_lab(LabSpec(hosts=4, bastion=True))
    config = lab.hosts[0].dir.parent / "ssh_config"
    shell = Shell(tmp_path, ssh_config=config)
    shell.write("ssh_config", config.read_text())
    assert play(context, shell) == []


@pytest.fixture
def own_lab() -> Iterator[str]:
    name = f"pagelab{os.getpid()}"
    yield name
    subprocess.run([sys.executable, "-m", "ipexctl", "lab", "down", "--lab", name], capture_output=True, check=False)


@pytest.mark.lab
@scenes(LAB)
def test_pages_that_create_a_lab(context: Scene, own_lab: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a lab needs root")
    assert play(context, Shell(tmp_path, lab=own_lab)) == []


@pytest.fixture(scope="module")
def slurm_programs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Left out where a lab cannot have Slurm: its programs are neither on this machine nor in reach of apt-get."""
    if os.geteuid() != 0:
        pytest.skip("a lab needs root")
    try:
        slurm.download_packages(tmp_path_factory.mktemp("slurm") / "packages")
    except UserError as missing:
        pytest.skip(f"no Slurm here: {missing.message.splitlines()[0]}")


@pytest.mark.lab
def test_pages_of_slurm(slurm_programs: None, make_lab: Callable[[LabSpec], Lab], tmp_path: Path) -> None:
    """From this machine to the queue, which installs an environment; then in an allocation on the login node."""
    lab = make_lab(LabSpec(hosts=3, slurm=True, shared_home=True))
    first = lab.hosts[0]
    config = tmp_path / "ssh_config"
    login = f"Host {LOGIN}\n  HostName {first.address}\n  User {first.user}\n\n"
    config.write_text(login + first.dir.parent.joinpath("ssh_config").read_text())
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    write_stack(wheels, torch="2.13.0", ipex=None)
    # Attach waits for the job, and ends with the run.
    laptop = Shell(tmp_path / "laptop", wheels_of(wheels), ssh_config=config, attach_seconds=90)
    for context in scenes_in(QUEUE):
        play(context, laptop)
    allocation = LoginShell(tmp_path / "login", ssh_config=config, login=LOGIN)
    allocation.type(f"mkdir ~/train && echo {shlex.quote((FILES / 'train.py').read_text())} >~/train/train.py")
    for context in scenes_in(ALLOCATION):
        play(context, allocation)
    allocation.close()
    assert laptop.differences + allocation.differences == []


@pytest.mark.lab
@scenes(LAB_SLURM)
def test_pages_that_create_a_lab_with_slurm(context: Scene, slurm_programs: None, own_lab: str, tmp_path: Path) -> None:
    assert play(context, Shell(tmp_path, lab=own_lab)) == []


@pytest.fixture(scope="module")
def playbook_shell(page_hosts: PageHosts, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A directory with the files that playbooks need, and a run to fetch from."""
    shell = page_hosts.shell(Scene("", CLUSTER), tmp_path_factory.mktemp("playbook_shell"))
    shell.write("train.toml.j2", "lr = 0.1\n")
    shell.write("data/tiny.bin", "few bytes")
    for line in (TRAIN, "ipexctl run train.py"):
        shell.type(line)
    return shell


@pytest.mark.lab
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", PLAYS, ids=lambda block: block.place)
def test_playbooks_of_the_pages_run(block: Block, playbook_shell: Shell) -> None:
    """Single tasks get a play. Plays as root are only checked: hosts share the kernel of this machine."""
    tasks = textwrap.indent(block.text, "    ")
    playbook_shell.write("site.yml", block.text if "hosts:" in block.text else TASKS_ALONE.format(tasks))
    call = "ipexctl play site.yml"
    playbook_shell.type(f"{call} --check --diff")
    if "become: true" not in block.text:
        playbook_shell.type(call)


def test_every_block_is_executed_once_or_has_a_reason() -> None:
    """One that stands on two pages, too."""
    executed = [block.text for context in SCENES for _, block in context.wanted()]
    assert sorted(executed) == sorted({block.text for block in ALL if block.left_out is None})


def test_at_most_10_percent_of_commands_are_skipped_for_known_reasons() -> None:
    out = left_out()
    assert {block.left_out for block in out} == set(REASONS)
    number = sum(len(block.commands()) for block in ALL)
    assert sum(len(block.commands()) for block in out) <= number * 0.1


def test_setup_commands_of_scenes_refer_to_existing_blocks() -> None:
    for context in SCENES:
        assert set(context.before) <= {number for number, _ in context.wanted()}, context.page


@pytest.mark.parametrize(
    ("told", "came", "same"),
    [
        ("3 of 12 in 0.4 s", "3 of 9 in 12.0 s", True),
        ("node1: …", "node3: hello", True),
        ("node1: a", "node1: b", False),
        ("ranks 0,2 on node[1,3]", "ranks 0,2-3 on node[1,3-4]", True),
        ("run train-1120-162108-591d failed", "run train-0101-000000-abcd failed", True),
        ("run train-1120-162108-591d failed", "run other-0101-000000-abcd failed", False),
    ],
)
def test_different_output_is_detected(told: str, came: str, same: bool) -> None:
    assert matches_page(told, came) is same


def test_missing_lines_without_ellipsis_are_detected() -> None:
    assert missing(find_difference(["a", "b"], ["a", "b", "c"], []) or "", "2 3 stdout 0 stderr") == []
    assert find_difference(["a", "…"], ["a", "b", "c"], []) is None
    assert find_difference(["a"], ["a"], ["said along the way"]) is None


def test_page_with_wrong_output_fails(tmp_path: Path) -> None:
    lie = Block(ROOT / "README.md", 1, "console", "$ ipexctl exec -- echo yes\nlocalhost: no\n")
    assert lie.commands() == [PageCommand("ipexctl exec -- echo yes", ("localhost: no",))]
    shell = Shell(tmp_path)
    shell.follow(lie)
    (found,) = shell.differences
    assert "localhost: no" in found
