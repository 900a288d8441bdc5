"""The commands of the pages are typed as they stand, in their order, and what comes is what the page shows.

On which stage a page is executed, and what is there before, says `page_scenes`; the real torch has a test beside the
real wheels, a checkout one beside the package. A block that isn't executed says why, above it in the page.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from doc_blocks import PAGES, ROOT, Block, Shown, blocks
from doc_output import alike, lie_in
from doc_shell import Shell
from ipexctl.lab import Lab, LabSpec, ssh_argv
from lab_run_helpers import IMPI, session_dir, stack_with, wheels_from_pypi
from message_data import missing
from page_scenes import ALONE, BASTION, CLUSTER, LAB, REASONS, SCENES, TRAIN, Scene, left_out, play, scenes
from tiny_wheels import write_stack, write_wheel

ALL = [block for page in PAGES for block in blocks(page) if block.commands()]
PLAYS = [
    block for page in ("README.md", "docs/playbooks.md") for block in blocks(ROOT / page) if block.language == "yaml"
]
SETTLED = """\
mkdir -p .config/pip
printf '%s\\n' '[global]' 'no-index = true' 'find-links =' 'extra-index-url =' > .config/pip/pip.conf
printf '%s\\n' '#!/bin/sh' 'touch "$1/ready"' > fill
chmod 755 fill
"""
"""Whatever pip is set to on this machine, it is not for this account on the hosts; a program of its own."""
FURNISHED = """\
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
chmod 755 /usr/local/bin/sudo
"""
"""What pages take for granted of their hosts: instructions, directories with data, sudo -n -u USER -- COMMAND."""
TASKS_ALONE = "- hosts: all\n  vars: {{archive: /nfs/data.tar}}\n  tasks:\n{}"
_numbers = itertools.count()


@dataclass(frozen=True)
class Stage:
    """Hosts that this machine's ssh knows as node1 … node4, and the wheels that can be had."""

    lab: Lab
    house: Path
    small: Path

    def shell(self, context: Scene, place: Path) -> Shell:
        config = place / "ssh_config"
        gateway = f"Host gateway\n  HostName {self.lab.hosts[3].address}\n  User ipex\n\n"
        config.write_text(gateway + self.lab.hosts[0].dir.parent.joinpath("ssh_config").read_text())
        env = wheels_of(self.small if context.home else self.house)
        if context.home:
            env["IPEXCTL_HOME"] = f"/home/ipex/page{next(_numbers)}"
        shell = Shell(place, env, ssh_config=config)
        names = [f"node{number + 1}" for number in range(context.hosts)]
        line = f"node[1-{context.hosts}]" if context.slots else "\n".join(names)
        shell.write("hostfile", f"{line}{context.slots}\n")
        return shell


def wheels_of(directory: Path) -> dict[str, str]:
    """Nobody but that directory is asked."""
    return {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(directory)}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = session_dir(tmp_path_factory)
    directory = stack_with(wheels_from_pypi(base, IMPI), base / "pages-house")
    for name in ("transformers", "accelerate", "tqdm"):
        write_wheel(directory, name, "1.0.0", files={f"{name}.py": ""})
    return directory


@pytest.fixture(scope="module")
def small(house: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows enough for pages that install one after another; mpirun stands in, too."""
    directory = tmp_path_factory.mktemp("small")
    write_stack(directory, torch="2.13.0", ipex=None)
    write_stack(directory, torch="2.8.0", ipex="2.8.0")
    write_stack(directory, torch="2.7.0", ipex="2.7.0", oneccl="2.7.0")
    for wheel in house.glob("t*-1.0.0-*.whl"):
        (directory / wheel.name).hardlink_to(wheel)
    return directory


@pytest.fixture(scope="module")
def stage(
    make_lab: Callable[[LabSpec], Lab], house: Path, small: Path, tmp_path_factory: pytest.TempPathFactory
) -> Stage:
    lab = make_lab(LabSpec(hosts=4, name=f"pages-{os.getpid()}"))
    for host in lab.hosts:
        for login, text in (("ipex", SETTLED), ("root", FURNISHED)):
            subprocess.run([*ssh_argv(host), "-l", login, "sh -e"], input=text.encode(), check=True, timeout=60)
    made = Stage(lab, house, small)
    shell = made.shell(Scene("", CLUSTER, hosts=4), tmp_path_factory.mktemp("ready"))
    for line in ("ipexctl trust", "ipexctl install"):
        shell.type(line)
    return made


@pytest.mark.lab
@pytest.mark.timeout(600)
@scenes(CLUSTER)
def test_on_hosts(context: Scene, stage: Stage, tmp_path: Path) -> None:
    assert play(context, stage.shell(context, tmp_path)) == []


@pytest.mark.timeout(600)
@scenes(ALONE)
def test_on_this_machine_alone(context: Scene, house: Path, tmp_path: Path) -> None:
    assert play(context, Shell(tmp_path, {**wheels_of(house), "IPEXCTL_HOME": str(tmp_path / "ours")})) == []


@pytest.mark.lab
@scenes(BASTION)
def test_behind_a_bastion(context: Scene, make_lab: Callable[[LabSpec], Lab], tmp_path: Path) -> None:
    lab = make_lab(LabSpec(hosts=4, bastion=True, name=f"pagesb-{os.getpid()}"))
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
def test_with_a_lab_of_its_own(context: Scene, own_lab: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a lab needs root")
    assert play(context, Shell(tmp_path, lab=own_lab)) == []


@pytest.fixture(scope="module")
def desk(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A directory with the files that playbooks speak of, and a run to fetch from."""
    shell = stage.shell(Scene("", CLUSTER), tmp_path_factory.mktemp("desk"))
    shell.write("train.toml.j2", "lr = 0.1\n")
    shell.write("data/tiny.bin", "few bytes")
    for line in (TRAIN, "ipexctl run train.py"):
        shell.type(line)
    return shell


@pytest.mark.lab
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", PLAYS, ids=lambda block: block.place)
def test_playbooks_are_played(block: Block, desk: Shell) -> None:
    """Tasks alone in a play of their own. What is root's is looked at alone: the kernel is this machine's, too."""
    tasks = textwrap.indent(block.text, "    ")
    desk.write("site.yml", block.text if "hosts:" in block.text else TASKS_ALONE.format(tasks))
    call = "ipexctl play site.yml"
    desk.type(f"{call} --check --diff")
    if "become: true" not in block.text:
        desk.type(call)


def test_every_block_is_executed_on_a_stage_or_says_why_not() -> None:
    executed = [block.place for context in SCENES for _, block in context.wanted()]
    assert sorted(executed) == sorted(block.place for block in ALL if block.left_out is None)


def test_few_blocks_are_left_out_and_each_for_a_reason_that_is_one() -> None:
    out = left_out()
    assert {block.left_out for block in out} == set(REASONS)
    number = sum(len(block.commands()) for block in ALL)
    assert sum(len(block.commands()) for block in out) <= number * 0.1


def test_what_a_scene_types_before_a_block_belongs_to_a_block() -> None:
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
def test_output_that_differs_is_seen(told: str, came: str, same: bool) -> None:
    assert alike(told, came) is same


def test_what_is_left_out_without_a_word_is_seen() -> None:
    assert missing(lie_in(["a", "b"], ["a", "b", "c"], []) or "", "2 3 stdout 0 stderr") == []
    assert lie_in(["a", "…"], ["a", "b", "c"], []) is None
    assert lie_in(["a"], ["a"], ["said along the way"]) is None


def test_a_page_that_lies_fails(tmp_path: Path) -> None:
    lie = Block(ROOT / "README.md", 1, "console", "$ ipexctl exec -- echo yes\nlocalhost: no\n")
    assert lie.commands() == [Shown("ipexctl exec -- echo yes", ("localhost: no",))]
    shell = Shell(tmp_path)
    shell.follow(lie)
    (found,) = shell.lies
    assert "localhost: no" in found
