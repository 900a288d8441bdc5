"""Each kind of file that is found and not named is refused where others can write it; --config names a toml."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_config import VARIABLES, parse, targets_of, write_user

from ipexctl.addons.play.variables import read_vars_dirs
from ipexctl.commands.app import defaults_of
from ipexctl.commands.config_file import config_files
from ipexctl.commands.defaults import files_of
from ipexctl.commands.option_groups import Home
from ipexctl.commands.target_hosts import host_options, select
from ipexctl.errors import FileError, UserError
from ipexctl.hosts.select import HostRequest, select_hosts
from ipexctl.launch.launchers.unwrap import unwrap
from ipexctl.stack.catalog import known_rows
from ipexctl.sync.scan import scan_project
from message_data import missing
from plan_helpers import spec_of


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.chdir(root)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return root


def hosts_of(request: HostRequest, project: Path) -> list[str]:
    return [host.name for host in select_hosts(request, environ={}, cwd=Path.cwd(), project=project).hosts]


def default_accelerate(project: Path) -> object:
    environ = {"HF_HOME": str(project)}
    return unwrap(spec_of("command", ("accelerate", "launch", "train.py")), (), None, environ)


def host_with_key(project: Path) -> object:
    (project / "hostfile").write_text("node1 identity=keys/id\n")
    assert hosts_of(HostRequest(hostfile=Path("hostfile")), project) == ["node1"]
    return hosts_of(HostRequest(), project)


FOUND: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "ipexctl.toml": ("ipexctl.toml", "forks = 2\n", lambda _: config_files()),
    "hostfile": ("hostfile", "node1\n", lambda project: hosts_of(HostRequest(), project)),
    "inventory": ("hostfile", "[all]\nnode1\n", lambda project: hosts_of(HostRequest(), project)),
    "hostfile of a toml": (
        "hosts",
        "node1\n",
        lambda project: hosts_of(HostRequest(hostfile=project / "hosts", hostfile_found=True), project),
    ),
    "limit of a toml": (
        "names",
        "node1\n",
        lambda project: hosts_of(HostRequest(hosts="node1", limit=f"@{project}/names", limit_found=True), project),
    ),
    "key of a hostfile": ("keys/id", "key\n", host_with_key),
    "ignore file": (".ipexctlignore", "*.pt\n", scan_project),
    "ignore file of git": (".gitignore", "*.pt\n", scan_project),
    "group_vars": ("group_vars/all.yml", "a: 1\n", lambda project: read_vars_dirs([project], [])),
    "accelerate config": ("accelerate/default_config.yaml", "num_processes: 2\n", default_accelerate),
}


@pytest.mark.parametrize("case", FOUND)
@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_found_file_counts_only_if_nobody_else_can_write_it(what: str, case: str, project: Path) -> None:
    name, text, read = FOUND[case]
    path = project / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    read(project)
    changed = path if what == "file" else path.parent
    changed.chmod(0o777)
    with pytest.raises(UserError) as caught:
        read(project)
    assert missing(caught.value.message, f"{path} {changed} 0777 ({os.geteuid()})") == []
    assert "trusted-directories = [" in caught.value.fix
    write_user(project, f"trusted-directories = ['{path.parent}']\n")
    read(project)


def test_a_named_hostfile_counts_wherever_it_is(project: Path) -> None:
    (project / "hostfile").write_text("node1\n")
    project.chmod(0o777)
    assert hosts_of(HostRequest(hostfile=Path("hostfile")), project) == ["node1"]


@pytest.mark.parametrize("key", ["hostfile", "identity", "accelerate-config"])
@pytest.mark.timeout(10)
def test_a_path_of_a_project_file_must_count_and_be_regular(key: str, project: Path) -> None:
    (project / "below").mkdir()
    (project / "below/file").write_text("x\n")
    (project / "ipexctl.toml").write_text(f"[run]\n{key} = 'below/file'\n")
    parse("run", "train.py")
    (project / "below").chmod(0o777)
    with pytest.raises(UserError) as caught:
        parse("run", "train.py")
    assert f"--{key} {project}/below/file" in caught.value.fix
    parse("run", f"--{key}", "other", "train.py")  # the call sets it aside
    (project / "below").chmod(0o755)
    (project / "below/file").unlink()
    os.mkfifo(project / "below/file")
    with pytest.raises(UserError) as caught:
        parse("run", "train.py")
    assert missing(caught.value.message, "ipexctl.toml:2 below/file") == []
    (project / "ipexctl.toml").unlink()
    write_user(project, f"[run]\n{key} = '{project}/below/file'\n")
    with pytest.raises(UserError):
        parse("run", "train.py")
    write_user(project, f"[run]\nsummary = '{project}/below/file'\n")  # it is written, not read
    parse("run", "train.py")


def test_a_limit_of_a_project_file_reads_no_pipe(project: Path) -> None:
    os.mkfifo(project / "names")
    with pytest.raises(UserError, match="regular"):
        hosts_of(HostRequest(hosts="node1", limit="@names", limit_found=True), project)


def test_the_users_own_files_are_checked_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IPEXCTL_ROWS", raising=False)
    config = write_user(project, "forks = 3\n")
    rows = config.with_name("rows.json")
    rows.write_text("[]")
    known_rows(os.environ)
    config.parent.chmod(0o777)
    for read in (lambda: parse("doctor"), lambda: known_rows(os.environ)):
        with pytest.raises(UserError) as caught:
            read()
        assert f"chmod go-w {config.parent}" in caught.value.fix
    parse("doctor", root=("--no-config",))


def test_a_strangers_file_wins_over_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the own project, whose hostfile it would set aside. In a directory such as /tmp it is not looked at."""
    mine = project / "mine"
    mine.mkdir()
    (mine / "hostfile").write_text("mine\n")
    (project / "ipexctl.toml").write_text("hosts = 'theirs'\nuser = 'them'\n")
    project.chmod(0o777)
    monkeypatch.chdir(mine)
    for words in (["doctor"], ["run", "train.py"], ["ps"]):
        with pytest.raises(UserError) as caught:
            parse(*words)
        assert f"touch {mine}/ipexctl.toml" in caught.value.fix
    (mine / "ipexctl.toml").touch()
    assert [host.name for host in select(targets_of(parse("doctor"))).hosts] == ["mine"]
    (mine / "ipexctl.toml").unlink()
    project.chmod(0o1777)
    assert [host.name for host in select(targets_of(parse("doctor"))).hosts] == ["mine"]


def test_trusted_directories_are_not_in_a_file_of_the_call(project: Path) -> None:
    write_user(project, "trusted-directories = ['/srv/team', '~/x/*']\n")
    parse("doctor")
    (project / "named.toml").write_text("trusted-directories = ['/srv/team']\n")
    with pytest.raises(FileError) as caught:
        parse("doctor", "--config", "named.toml")
    assert (Path(caught.value.path).name, caught.value.line) == ("named.toml", 1)


def test_config_names_a_file_in_place_of_the_projects(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = project.parent / "other/named.toml"
    named.parent.mkdir()
    named.write_text("hostfile = 'hosts'\nssh-config = 'cfg'\n[cluster.big]\nhosts = 'big'\n[ps]\ntimeout = 7\n")
    named.with_name("hosts").write_text("node1 ssh_config=cfg\n")
    named.parent.chmod(0o777)  # it was named
    (project / "ipexctl.toml").write_text("[run\n")
    write_user(project, "forks = 3\nuser = 'me'\n")
    targets = targets_of(parse("doctor", "--config", "../other/named.toml"))
    assert [host.name for host in select(targets).hosts] == ["node1"]
    assert (str(targets.ssh_config), targets.forks) == (str(named.with_name("cfg")), 3)
    assert host_options(targets, Home()) == f" --config {named}"
    big = targets_of(parse("doctor", "--config", str(named), "-c", "big"))
    assert (big.hosts, host_options(big, Home())) == ("big", f" --config {named} -c big")
    assert parse("ps", "--config", str(named)).params["timeout"] == 7
    context = parse("config", "--config", str(named))
    assert next(file.source.path for file in files_of(context)) == str(named)
    with pytest.raises(UserError):
        parse("doctor", "--config", "missing.toml")
    with pytest.raises(UserError):
        parse("doctor", "--config", str(named), root=("--no-config",))


@pytest.mark.timeout(10)
def test_config_may_be_a_pipe_of_the_call(project: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"forks = 5\n")
    os.close(write)
    context = parse("config", "--config", f"/dev/fd/{read}")
    assert defaults_of(context)["forks"].value == 5
    assert [file.tables for file in files_of(context)] == [{"forks": 5}]
    os.close(read)


def test_an_option_of_the_script_called_config_needs_no_note(project: Path) -> None:
    from ipexctl.commands.spec_of_call import note_on_arguments

    (project / "train.py").write_text("")
    context: Any = parse("run", "train.py", "--config", "x.yaml", "--ppn", "2")
    assert context.params["config"] is None
    note = note_on_arguments(context, spec_of("script", ("train.py", "--config", "x.yaml", "--ppn", "2")))
    assert "--ppn" in note
    assert "--config" not in note
