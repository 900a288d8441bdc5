"""The texts of refusals in rooms without a golden text of their own.

A row is what is asked, read or typed; the golden text has the message, the place and the fix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from golden_file import Case, golden_diff, refusal, refused, without
from sync_helpers import put
from test_config import VARIABLES, parse, write_user
from test_sync_manifest_and_plan import project_of
from test_sync_root import HOMES, OWN, run_spec
from test_unit_lab_plan import HOST, PROGRAMS

import ipexctl
from case_table import literals_of
from ipexctl.addons.lab.faults import check_possible, find_fault, pick_host, read_arguments
from ipexctl.addons.lab.lab_plan import LabSpec, check, free_block, free_name, plan_lab
from ipexctl.addons.lab.lab_system import lab_problem
from ipexctl.commands.option_groups import Targets
from ipexctl.commands.push_command import _with_hosts
from ipexctl.errors import FileError
from ipexctl.files.push_source import list_source, parse_target
from ipexctl.hosts.host import Host, check_user, home_on_nodes
from ipexctl.hosts.internal_addresses import InterfaceChoice
from ipexctl.hub.hugging_face import parse_repo
from ipexctl.node.common.fix import ipexctl_command
from ipexctl.projects.root import describe_root_problem, path_problem
from ipexctl.run.start.start_project import locate_project
from ipexctl.sync.project import read_project
from ipexctl.sync.scan import check_size, scan_project
from plan_helpers import spec_of
from record_helpers import run_record

UNTYPED: Any = ipexctl
RECORD = run_record("run1", Host("here", "127.0.0.1"), "/nowhere", "python3")

LABS: tuple[LabSpec, ...] = (
    LabSpec(hosts=0),
    LabSpec(hosts=401),
    LabSpec(name="No Good"),
    LabSpec(name="../etc"),
    LabSpec(users=()),
    LabSpec(users=("a b",)),
    LabSpec(homes=("relative",)),
    LabSpec(homes=("/home/../etc",)),
    LabSpec(homes=("/usr/people",)),
    LabSpec(cpus=("hasswell",)),
    LabSpec(hosts=1, slurm=True),
    LabSpec(slurm=True, bastion=True),
    LabSpec(slurm=True, names=False),
    LabSpec(slurm=True, users=("alice", "bob")),
    LabSpec(slurm=True, homes=("/home", "/scratch")),
)
FAULT_ARGUMENTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("slow-link", ("fast",)),
    ("slow-link", ("1bit",)),
    ("slow-link", ("10mbit", "wlan0")),
    ("packet-loss", ("0",)),
    ("packet-loss", ("101",)),
    ("packet-loss", ("1;reboot",)),
    ("slow-rc", ("-1",)),
    ("clock-skew", ("1.5",)),
    ("clock-skew", ("0",)),
    ("full-disk", ("now",)),
    ("slow-rc", ("1", "2")),
)
CONFLICTS = (
    ("sshd-hang", "sshd-dead"),
    ("csh-shell", "fish-shell"),
    ("read-only-home", "noisy-rc"),
    ("full-disk", "slow-rc"),
)
CONFIG_FILES = literals_of(__file__, "config_files")
REPOSITORIES = (*literals_of(__file__, "repositories"), f"hf:a/{'b' * 95}")
RUN_KEYWORDS: tuple[dict[str, Any], ...] = (
    {"wire": "bf17"},
    {"ppn": 0},
    {"ppn": True},
    {"pnn": 1},
    {"instal": True},
    {"exclude": "*.pt"},
    {"args": "--lr 0.1"},
    {"with_": "peft"},
    {"export": ["1=2"]},
    {"python": "/usr/bin/python3", "with_": ["peft"]},
    {"module": "train"},
    {"cwd": "nowhere"},
)
HOST_KEYWORDS: tuple[dict[str, Any], ...] = (
    {"forks": 0},
    {"host_keys": "never"},
    {"transport": "rsh"},
    {"timeout": 0},
    {"port": 0},
    {"hostfile": "hosts"},
)
API_CALLS: tuple[Callable[[Any], object], ...] = (
    lambda _: UNTYPED.Cluster(["node1"], hostfle="x"),
    lambda _: UNTYPED.Cluster.from_hostfile("x", limt="node2"),
    lambda cluster: cluster.doctor(smok=True),
    lambda cluster: cluster.install(whit=["peft"]),
    lambda cluster: cluster.push("corpus"),
    lambda cluster: cluster.doctor(True),
    lambda _: UNTYPED.Run.find(rnu="last"),
    lambda _: UNTYPED.Run(RECORD).wait(timout=1),
)
SCRIPTS = literals_of(__file__, "scripts")
TARGETS = ("", "/", "~", "~/", ".", "a:", "a:/", "a:~", "..", "../x", "x/../../y", "~root/x", "a\nb", "a[1:x")
INTERFACES = ("10.0.0.0/33", "a b", "", "an-interface-name-too-long", "1.2.3.4/x")
ACCOUNTS = ("me\n  ProxyCommand evil", "-oProxyCommand=x", "a b", "%h")
SIZES = ((20_001, 1_000_000_000), (20_000, 1_000_000_001), (20_001, 1_000_000_001))
USER_CONFIGS = ("trusted-directories = '/srv'\n", "trusted-directories = ['srv']\n", "trusted-directories = [1]\n")
HOMES_ON_NODES = ("x", "./x", "~", "~other/x", "/", "/a/../b", "/a\nb", "/a:b")


def named(request: Any) -> str:
    """The fields that differ from their defaults."""
    return " ".join(
        f"{field.name}={getattr(request, field.name)}"
        for field in fields(request)
        if getattr(request, field.name) != field.default
    )


def labs() -> Iterator[Case]:
    yield from (refusal(f"lab up {named(spec)}", check, spec) for spec in LABS)
    one, two = (plan_lab(LabSpec(hosts=2, bastion=True), name, 1) for name in ("lab", "lab2"))
    for found, name, lab in (
        ([], "node1", None),
        ([one], "node9", None),
        ([one], "node1", "lab7"),
        ([one, two], "node1", None),
    ):
        yield refusal(f"host {name} of {lab or len(found)}", pick_host, found, name, lab)
    yield refusal("a name in use", free_name, ("mine",), "mine")
    yield refusal("no free network", free_block, (), ("10.77.0.0/16",))
    mounts = "29 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
    chroot = "310 29 0:5 / /proc rw - proc proc rw\n"
    for platform, uid, programs, mountinfo in (
        ("darwin", 0, PROGRAMS, mounts),
        ("linux", 1000, PROGRAMS, mounts),
        ("linux", 0, PROGRAMS[1:], mounts),
        ("linux", 0, PROGRAMS[:2], mounts),
        ("linux", 0, PROGRAMS, chroot),
    ):
        problem = lab_problem(platform=platform, uid=uid, programs=programs, mountinfo=mountinfo)
        yield Case(f"no lab: {platform} {uid} {len(programs)}", *problem)
    yield refusal("a fault that is not there", find_fault, "ssh-hang")
    for name, words in FAULT_ARGUMENTS:
        yield refusal(f"fault {name} {words}", read_arguments, find_fault(name), words)
    for in_force, wanted in CONFLICTS:
        host, fault = replace(HOST, faults={in_force: read_arguments(find_fault(in_force), ())}), find_fault(wanted)
        yield refusal(f"{wanted} beside {in_force}", check_possible, fault, read_arguments(fault, ()), host)


def calls() -> Iterator[Case]:
    cluster = UNTYPED.Cluster(["nowhere.invalid"])
    yield from (refusal(f"repository {word!r}"[:90], parse_repo, word) for word in REPOSITORIES)
    yield from (refusal(f"home {text!r}", home_on_nodes, Path(text), {}) for text in HOMES_ON_NODES)
    yield from (
        refusal(f"$IPEXCTL_HOME={text!r}", home_on_nodes, None, {"IPEXCTL_HOME": text}) for text in HOMES_ON_NODES
    )
    yield from (refusal(f"run({each})", partial(cluster.run, "train.py", **each)) for each in RUN_KEYWORDS)
    yield from (refusal(f"Cluster({each})", partial(UNTYPED.Cluster, ["a"], **each)) for each in HOST_KEYWORDS)
    yield from (refusal(f"call {at}", call, cluster) for at, call in enumerate(API_CALLS, 1))
    yield from (refusal(f"push to {text!r}", parse_target, text, Path("corpus")) for text in TARGETS)
    yield from (refusal(f"--iface {text!r}", InterfaceChoice, text) for text in INTERFACES)
    yield from (refusal(f"account {user!r}", check_user, user) for user in ACCOUNTS)
    for option in ("--nnodes", "--nnodes=2", "--num_machines", "--num-machines"):
        yield refusal(f"run {option}", parse, "run", option, "2", "train.py")
    for targets in (Targets(hosts="node1"), Targets(limit="node1")):
        yield refusal(f"push to node2 beside {targets.hosts} {targets.limit}", _with_hosts, targets, "node2")
    yield refusal("hosts as text", UNTYPED.Cluster, "node1")
    yield refusal("no hosts", UNTYPED.Cluster, [])


def config_files(project: Path) -> Iterator[Case]:
    for text in CONFIG_FILES:
        (project / "ipexctl.toml").write_text(text)
        case = refusal(f"ipexctl.toml {text!r}", parse, "run", "train.py", at=project)
        yield case._replace(
            message=re.sub("(TOML: |is not (?:one of|in)).*", r"\1…", case.message)
        )  # of Python, of click
    write_user(project, "[run]\nbinds = 'numa'\n")
    (project / "ipexctl.toml").write_text("fork = 1\n[run]\npnp = 1\n")
    with pytest.raises(FileError) as caught:
        parse("run", "train.py")
    for error in (caught.value, *caught.value.more):
        yield refused(f"one of several, in {Path(error.path).name}", error, project.parent)
    for text in USER_CONFIGS:
        write_user(project, f"forks = 3\n{text}")
        yield refusal(f"config.toml {text!r}", parse, "doctor", at=project.parent)
    write_user(project, "")
    for command, text in {
        "ps": "ssh-config = 'x'\n",
        "doctor": "[cluster.lab]\nssh-config = 'x'\n",
        "logs": "trusted-directories = ['/srv/team']\n",
    }.items():
        (project / "ipexctl.toml").write_text(text)
        yield refusal(f"ipexctl.toml of {command}: {text!r}", parse, command, "train.py", at=project.parent)
    (project / "ipexctl.toml").unlink()


def projects(base: Path) -> Iterator[Case]:
    """Directories that cannot be a project, and scripts that are not there; HOME is one of the directories."""
    home, here = base / "me", base / "here"
    for path in ("a.py", "proj/train.py"):
        put(home, path, "print()")
    for root in ("/", "/home", "/home/me", "/data", "/data/me", *map(str, OWN)):
        yield Case("not a project", describe_root_problem(Path(root), HOMES, OWN))
    for spec in (run_spec("a.py"), spec_of("module", ("x",)), spec_of("command", ("x",))):
        yield refusal(f"a {spec.asked.kind} in the home", locate_project, spec, home, at=base)
    yield refusal("--cwd /", locate_project, run_spec(f"{home}/proj/train.py", cwd=Path("/")), Path("/"), at=base)
    for root in (".", "..", ".ipexctl", ".cache/ipexctl"):
        yield refusal(f"sync {root}", read_project, home / root, at=base)
    for path in ("train.py", "src/eval.py", "src/x/prepare.py"):
        put(here, path, "print()")
    for script in SCRIPTS:
        yield refusal(f"run {script}", locate_project, run_spec(script), here, at=base)
        if script in ("nothing-like-it", "litgpt"):  # which the environment may have
            continue
        words = (run_spec(script, "--lr", "a b"), here, ipexctl_command("run", "-n", "2"))
        yield refusal(f"run {script} --lr", locate_project, *words, at=base)
    for path in ("proj/train.py", "proj/a/b/trains.py"):
        put(base, path)
    for mark in ("", "ipexctl.toml"):
        (base / "proj" / (mark or "train.py")).touch()
        words = (run_spec("train.py"), base / "proj/a/b", ipexctl_command("run"))
        yield refusal(f"run from below, {mark}", locate_project, *words, at=base)
    yield refusal("no project", scan_project, base / "nothing", at=base)
    (here / "pipe").mkdir()
    os.mkfifo(here / "pipe/fifo")
    for name in ("src", "none", "train.py/x", "pipe/fifo", "x" * 300):
        yield Case(f"file {name[:20]}", without(path_problem(here / name, "file"), base))
    for name in ("train.py", "none"):
        yield Case(f"directory {name}", without(path_problem(here / name, "directory"), base))


def modules_and_sizes(base: Path) -> Iterator[Case]:
    for count, size in SIZES:
        case = refusal(f"{count} files, {size} bytes", check_size, Path("/p"), project_of(count, size))
        yield case._replace(message=case.message.partition("; largest")[0])  # of many that are as large
    yield refusal("a scan that was ended", check_size, Path("/p"), project_of(1, 1, complete=False))
    named = ("train.py", "large/1.toml")
    yield refusal("a call that names the largest", check_size, Path("/p"), project_of(1, 1, complete=False), named)
    for path in ("pkg/train.py", "a/py.py", "train.py"):
        put(base, path)
    for name in ("pkg/train.py", "./pkg/train", "train.py"):
        yield refusal(f"run -m {name}", locate_project, spec_of("module", (name,)), base, at=base)


def sources(base: Path) -> Iterator[Case]:
    """What is not pushed, and what is in ignore files."""
    for number, target in enumerate(("/etc/passwd", "../outside", "sub/../../outside")):
        source = base / f"source{number}"
        (source / "sub").mkdir(parents=True)
        (source / "way").symlink_to(target)
        yield refusal(f"push a link to {target}", list_source, source, at=base)
    (base / "pipe").mkdir()
    os.mkfifo(base / "pipe/pipe")
    for name in ("pipe", "none"):
        yield refusal(f"push {name}", list_source, base / name, at=base)
    for file, text in ((".ipexctlignore", "z\n!\n"), (".gitignore", "x\n" + "/**/a" * 40 + "\n")):
        put(base / file[1:], file, text)
        yield refusal(f"a pattern of {file}", scan_project, base / file[1:], at=base)


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in (*VARIABLES, "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("project", "pushed"):
        (tmp_path / name).mkdir()
    project = tmp_path / "project"
    put(project, "train.py", "print()")
    put(project, "pyproject.toml")
    monkeypatch.chdir(project)
    cases = [*labs(), *calls(), *config_files(project)]
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    cases += [*projects(tmp_path), *modules_and_sizes(tmp_path / "modules"), *sources(tmp_path / "pushed")]
    assert not (diff := golden_diff("refusals", cases)), diff
