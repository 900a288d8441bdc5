"""Defaults from ipexctl.toml and the user's config.toml: precedence, checks, and what a found file cannot set."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from test_cli import all_commands as every_command
from test_cli import call
from test_complete import tab
from typer.main import get_command

from case_table import case_table, lines_of
from ipexctl.commands import config_file
from ipexctl.commands.app import app, commands, defaults_of
from ipexctl.commands.defaults import _VARIABLES, REFUSED, command_specs, option_groups
from ipexctl.commands.option_groups import ConfiguredCommand, Home, Targets
from ipexctl.commands.spec_of_call import options_of_run, read_launch_call
from ipexctl.commands.target_hosts import host_options, select
from ipexctl.errors import FileError, UserError
from ipexctl.launch.run_declarations import DECLARED
from ipexctl.node.common.run_options import RunOptions
from ipexctl.option_declaration import option_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

VARIABLES = ("IPEXCTL_CLUSTER", *(variable for variable, _ in _VARIABLES))
HARMLESS = frozenset(" ".join(lines_of(__file__, "harmless")).split())
"""Parameters that a project's file may set: they run no program, send and write no file, and weaken no check."""
NO_DEFAULTS = {"events", "json", "inventory", "cluster", "config", "help_all"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, the current directory; the user's files are beside it."""
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.chdir(root)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return root


def write_user(project: Path, text: str) -> Path:
    path = project.parent / "config/ipexctl/config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def parse(*argv: str, root: tuple[str, ...] = ()) -> Any:
    """The context of a command, after parsing; nothing runs."""
    commands: Any = get_command(app)
    above = commands.make_context("ipexctl", [*root, argv[0]])
    command = commands.get_command(above, argv[0])
    return command.make_context(argv[0], list(argv[1:]), parent=above)


def targets_of(context: Any) -> Targets:
    fields = set(Targets.__dataclass_fields__) - {"defaults"}
    return Targets(**{name: context.params[name] for name in fields}, defaults=defaults_of(context))


def test_defaults_are_unchanged_without_config_files(project: Path) -> None:
    context = parse("exec", "--", "true")
    assert defaults_of(context) == {}
    assert context.params["forks"] == 32


def test_precedence_of_sources(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def home(*options: str) -> str:
        return str(parse("run", *options, "train.py").params["home"])

    write_user(project, "home = '/user'\n")
    assert home() == "/user"
    write_user(project, "home = '/user'\n[run]\nhome = '/user/run'\n")
    assert home() == "/user/run"
    monkeypatch.setenv("IPEXCTL_HOME", "/variable")
    assert home() == "None"  # the command reads the variable
    assert home("--home", "/call") == "/call"
    (project / "ipexctl.toml").write_text("forks = 2\n")
    write_user(project, "forks = 3\n[run]\nforks = 4\n")
    assert parse("run", "train.py").params["forks"] == 2
    (project / "ipexctl.toml").write_text("forks = 2\n[run]\nforks = 5\n")
    assert parse("run", "train.py").params["forks"] == 5
    assert parse("doctor").params["forks"] == 2
    assert parse("run", "-f", "6", "train.py").params["forks"] == 6
    assert parse("run", "train.py", root=("--no-config",)).params["forks"] == 32


def test_values_of_every_type_are_read(project: Path) -> None:
    (project / "ipexctl.toml").write_text(
        "verbose = 1\nuser = 'me'\n[run]\nppn = 2\nhang-after = 5\nsync = false\ninstall = true\n"
        "exclude = ['*.pt', 'a b']\nbackend = 'gloo'\nexport = ['A=1']\n"
    )
    params = parse("run", "train.py").params
    assert (params["ppn"], params["hang_after"], params["sync"], params["install"]) == (2, 5.0, False, True)
    assert tuple(params["exclude"]) == ("*.pt", "a b")
    assert tuple(parse("run", "--exclude", "x", "train.py").params["exclude"]) == ("x",)
    assert params["backend"] == "gloo"
    assert params["verbose"] == 1


def test_hosts_of_lab_up_ignore_the_shared_hosts_option(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "a")
    for text, number in (("hosts = 'node1'\n", 3), ("hosts = 'node1'\n[lab]\nhosts = 5\n", 5)):
        (project / "ipexctl.toml").write_text(text)
        lab: Any = parse("lab", "up")
        up = lab.command.get_command(lab, "up").make_context("up", [], parent=lab)
        assert up.params["hosts"] == number


def test_project_file_is_found_for_the_current_directory(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = project / "a/b"
    below.mkdir(parents=True)
    (project / "ipexctl.toml").write_text("forks = 2\n")
    monkeypatch.chdir(below)
    assert config_file.project_file() == project / "ipexctl.toml"
    (below.parent / "ipexctl.toml").write_text("forks = 3\n")
    assert config_file.project_file() == below.parent / "ipexctl.toml"
    (below / ".git").mkdir()
    assert config_file.project_file() is None
    monkeypatch.chdir(project)
    assert config_file.project_file() == project / "ipexctl.toml"
    monkeypatch.setenv("HOME", str(project))
    assert config_file.project_file() is None
    os.mkfifo(below / "ipexctl.toml")
    monkeypatch.chdir(below)
    assert config_file.project_file() is None


def test_config_reports_every_invalid_value(project: Path) -> None:
    (project / "ipexctl.toml").write_text(
        "forks = 0\n[run]\nmpi = 'foo'\nbackend = 'nccl'\n[install]\npython = 'abc'\n[logs]\ngrep = '('\n"
    )
    write_user(project, "[run]\npython = 'venv'\n")
    done = call("config", "-q")
    assert done.returncode == 2
    found = re.findall(r"^(\S+):(\d+): (\w+): ", done.stderr, re.MULTILINE)
    assert sorted((Path(path).name, int(line), key) for path, line, key in found) == [
        ("config.toml", 2, "python"),
        *[("ipexctl.toml", n, k) for n, k in ((1, "forks"), (3, "mpi"), (4, "backend"), (6, "python"), (8, "grep"))],
    ]


@pytest.mark.parametrize(
    "data", [b"a = '\xff'\n", b"a = " + b"[" * 100_000, b"forks = " + b"9" * 6000, b"#" * 1_000_001]
)
def test_a_file_that_cannot_be_read_is_refused(data: bytes, project: Path) -> None:
    (project / "ipexctl.toml").write_bytes(data)
    with pytest.raises(UserError):
        parse("doctor")


def test_every_option_is_either_refused_in_a_found_file_or_harmless() -> None:
    names = {param.name for _, spec in command_specs(*commands()) for param in spec.params.values()} - NO_DEFAULTS
    assert names - HARMLESS - REFUSED.keys() == set(), "decide: may a cloned repository set it? then HARMLESS"
    assert HARMLESS & REFUSED.keys() == set()


def test_every_option_has_a_known_type() -> None:
    kinds = {param.option_type.kind for _, spec in command_specs(*commands()) for param in spec.params.values()}
    assert kinds == {bool, str, Path, int, float}


def test_every_command_takes_defaults() -> None:
    for name, command in every_command():
        assert isinstance(command, ConfiguredCommand) or command.commands, name


@case_table
def test_unsafe_options_are_refused_in_a_project_file_only(command: str, line: str, project: Path) -> None:
    text = f"[{command}]\n{line}\n"
    (project / "ipexctl.toml").write_text(text)
    with pytest.raises(FileError) as caught:
        parse(command, "x.py")
    assert caught.value.line == 2
    assert "config.toml" in caught.value.fix
    (project / "ipexctl.toml").unlink()
    write_user(project, text)
    parse(command, *{"run": ["x.py"], "exec": ["x.py"], "play": ["x.py"], "push": ["x", "y"]}.get(command, []))


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("install", "with = ['tqdm', 'transformers>=4.40,<5', 'accelerate[testing]']"),
        ("run", "mpi = 'auto'"),
        ("run", "export = ['A=1', 'B=/etc/passwd']"),
        ("run", "checkpoint = 'out/..last/model.pt'"),
    ],
)
def test_harmless_values_of_the_same_options_are_taken_from_a_project_file(
    command: str, line: str, project: Path
) -> None:
    (project / "ipexctl.toml").write_text(f"[{command}]\n{line}\n")
    parse(command, *(["x.py"] if command == "run" else []))


def test_paths_are_relative_to_their_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = project / "below"
    below.mkdir()
    (project / "ipexctl.toml").write_text("hostfile = 'hosts'\nidentity = '~/key'\n")
    write_user(project, "ssh-config = 'none'\nknown-hosts = 'known'\nhome = '~/x'\n")
    monkeypatch.chdir(below)
    params = {name: str(value) for name, value in parse("doctor").params.items()}
    assert params["hostfile"] == str(project / "hosts")
    assert params["identity"] == str(Path.home() / "key")
    assert params["ssh_config"] == "none"
    assert params["known_hosts"] == str(project.parent / "config/ipexctl/known")
    assert params["home"] == "~/x"


def test_hostfile_named_by_a_project_file_counts_as_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "hosts").write_text("node1 ssh_config=cfg\n")
    with monkeypatch.context() as patch:
        patch.setenv("IPEXCTL_CLUSTER", "x")
        (project / "ipexctl.toml").write_text("[cluster.x]\nhostfile = 'hosts'\n")
        with pytest.raises(FileError):
            select(targets_of(parse("doctor")))
    (project / "ipexctl.toml").write_text("hostfile = 'hosts'\n")
    with pytest.raises(FileError) as caught:
        select(targets_of(parse("doctor")))
    assert "-H" in caught.value.fix
    assert [host.name for host in select(targets_of(parse("doctor", "-H", "hosts"))).hosts] == ["node1"]
    (project / "ipexctl.toml").unlink()
    write_user(project, f"hostfile = '{project}/hosts'\n")
    assert [host.name for host in select(targets_of(parse("doctor"))).hosts] == ["node1"]


def test_hosts_of_call_variable_or_allocation_override_config_files(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "ipexctl.toml").write_text("hosts = 'a'\n")
    (project / "hosts").write_text("b\n")

    def names(*argv: str) -> tuple[list[str], str]:
        selection = select(targets_of(parse("doctor", *argv)))
        return [host.name for host in selection.hosts], selection.source

    assert names() == (["a"], "ipexctl.toml:1")
    assert names("-H", "hosts") == (["b"], "hosts")
    monkeypatch.setenv("IPEXCTL_HOSTFILE", "hosts")
    assert names()[0] == ["b"]
    monkeypatch.setenv("IPEXCTL_HOSTFILE", "")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c")
    assert names()[0] == ["c"]
    assert names("--hosts", "d")[0] == ["d"]


@pytest.mark.parametrize(
    ("text", "argv", "absent"),
    [
        ("stack = 'ipex'\n", ["--torch", "2.13"], "stack"),
        ("live = true\n", ["--plain"], "live"),
        ("detach = true\n", ["--summary", "x"], "detach"),
        ("hostfile = 'x'\n", ["--hosts", "a"], "hostfile"),
    ],
)
def test_command_line_option_disables_conflicting_defaults(
    text: str, argv: list[str], absent: str, project: Path
) -> None:
    (project / "ipexctl.toml").write_text(f"[run]\n{text}")
    assert absent in defaults_of(parse("run", "train.py"))
    assert absent not in defaults_of(parse("run", *argv, "train.py"))


def test_cluster_is_selected_by_option_or_variable(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "ipexctl.toml").write_text(
        "hosts = 'top'\nforks = 3\n[run]\nuser = 'runner'\n"
        "[cluster.lab]\nhosts = 'node[1-2]'\nuser = 'me'\n[cluster.big]\nhostfile = 'big'\n"
    )
    for argv, variable in ((["-c", "lab"], ""), (["--cluster=lab"], "big"), ([], "lab")):
        monkeypatch.setenv("IPEXCTL_CLUSTER", variable)
        targets = targets_of(parse("run", *argv, "train.py"))
        assert (targets.hosts, targets.user, targets.forks, targets.cluster) == ("node[1-2]", "me", 3, "lab")
        assert targets.names_hosts is bool(argv)
    monkeypatch.setenv("IPEXCTL_CLUSTER", "")
    targets = targets_of(parse("run", "-c", "big", "train.py"))
    assert (targets.hosts, str(targets.hostfile), targets.user) == (None, str(project / "big"), "runner")
    assert targets_of(parse("run", "-c", "lab", "-H", "x", "train.py")).hosts is None
    monkeypatch.setenv("IPEXCTL_HOSTFILE", "other")
    assert targets_of(parse("run", "-c", "lab", "train.py")).hosts == "node[1-2]"
    with pytest.raises(UserError) as caught:
        parse("run", "-c", "lba", "train.py")
    assert "'lab'" in caught.value.fix
    (project / "ipexctl.toml").unlink()
    with pytest.raises(UserError):
        parse("run", "-c", "lab", "train.py")


def test_suggested_commands_have_the_options_not_set_by_config_files(project: Path) -> None:
    (project / "ipexctl.toml").write_text("user = 'me'\n[run]\nport = 22\n[cluster.lab]\nhosts = 'a'\n")
    assert host_options(targets_of(parse("run", "-c", "lab", "train.py")), Home()) == " -c lab --port 22"


def test_suggested_commands_have_the_options_that_choose_the_environment(project: Path) -> None:
    """Which options of the call they have, in the order of the help; the others are left to the user.

    A default of [run] that only run has is in force again.
    """
    (project / "ipexctl.toml").write_text("user = 'me'\n[run]\nmpi = 'openmpi'\n")
    context = parse("run", "-n", "4", "--python", "/opt/my py", "--cwd", ".", "--backend", "gloo", "train.py")
    asked = RunOptions(**{name: context.params[name] for name in DECLARED})
    chosen = option_text(options_of_run(asked, targets_of(context)))
    assert chosen == " -n 4 --python '/opt/my py' --cwd ."


@pytest.mark.parametrize(
    ("section", "words", "backend"),
    [
        ("", "train.py", "auto"),
        ("[run]\nbackend = 'none'\n", "train.py", "none"),
        ("[run]\nbackend = 'none'\n", "--backend gloo train.py", "gloo"),
        ("[run]\nbackend = 'gloo'\n", "ipexrun train.py", "none"),
        ("[run]\nbackend = 'none'\n", "--backend auto ipexrun train.py", "auto"),
    ],
)
def test_the_backend_of_a_config_file_reaches_the_request(
    section: str, words: str, backend: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option of the call wins over a pasted line of another launcher, and that over the file."""
    (project / "train.py").write_text("")
    (project / "ipexctl.toml").write_text(f"hosts = 'localhost'\n{section}")
    backends = []

    def read_only(*given: Any) -> Any:
        backends.append(read_launch_call(*given).asked.backend)
        raise typer.Exit

    monkeypatch.setattr("ipexctl.commands.run_call.read_launch_call", read_only)
    context = parse("run", *words.split())
    with pytest.raises(typer.Exit):
        context.command.invoke(context)
    assert backends == [backend]


def test_unused_defaults_from_config_files_are_no_error(project: Path) -> None:
    (project / "train.py").write_text("")
    (project / "ipexctl.toml").write_text("[run]\nstack = 'torch'\n[envs]\nenv = 'x'\n")
    assert call("run", "--hosts", "no.invalid", "--connect-timeout", "1", "train.py", cwd=project).returncode == 3
    assert call("envs", "--hosts", "localhost", "--home", str(project / "h"), cwd=project).returncode == 0


def test_defaults_from_config_files_are_reported_on_stderr(project: Path) -> None:
    (project / "train.py").write_text("")
    (project / "ipexctl.toml").write_text("hosts = 'localhost'\n[run]\nppn = 1\n")
    write_user(project, "forks = 3\n")
    done = call("run", "--dry-run", "train.py", cwd=project)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stderr.splitlines() if "ipexctl.toml" in line)
    assert all(word in line for word in ("hosts", "ppn", "config.toml", "forks"))
    done = call("run", "--dry-run", "--json", "train.py", cwd=project)
    assert json.loads(done.stdout)["schema"]
    assert "config.toml" not in done.stderr


def test_help_works_with_an_invalid_file_and_completion_reads_clusters(project: Path) -> None:
    (project / "ipexctl.toml").write_text("[run\n")
    assert call("run", "--help", cwd=project).returncode == 0
    done = call("doctor", "--json", cwd=project)
    assert done.returncode == 2
    said = json.loads(done.stdout)
    assert (said["schema"], said["file"], said["line"]) == ("ipexctl.doctor/1", "ipexctl.toml", 1)
    (project / "ipexctl.toml").write_text("hosts = 'node[1-2]'\n[cluster.lab]\nhosts = 'big'\n")
    assert tab(project, "exec", "-l", "n") == ["node1", "node2"]
    assert tab(project, "exec", "-c", "") == ["lab"]
    assert tab(project, "exec", "-c", "lab", "-l", "") == ["big"]


def test_config_shows_every_option_with_its_source(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "ipexctl.toml").write_text("[run]\n\nppn = 2\n")
    write_user(project, "user = 'me'\n")
    monkeypatch.setenv("IPEXCTL_HOME", "/scratch")
    done = call("config", "--json", "--port", "23")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["schema"] == "ipexctl.config/1"
    assert report["files"][0] == "ipexctl.toml"
    options = report["options"]
    assert options["ppn"] == {"value": 2, "source": "ipexctl.toml:3"}
    assert options["user"]["value"] == "me"
    assert options["user"]["source"].endswith("config.toml:1")
    assert options["home"] == {"value": "/scratch", "source": "$IPEXCTL_HOME"}
    assert options["port"] == {"value": 23, "source": "command line"}
    assert options["backend"] == {"value": "auto", "source": "built-in"}
    assert (options["hosts"]["value"], options["lab up.hosts"]["value"]) == (None, 3)
    run = json.loads(call("config", "run", "--json").stdout)["options"]
    assert run.keys() == dict(command_specs("run"))["run"].params.keys()
    assert {name.rpartition(".")[2] for name in run} <= {name.rpartition(".")[2] for name in options}
    shown = call("config", "run").stdout
    assert "ipexctl.toml:3" in shown
    assert "doctor" not in shown
    assert call("config", "rnu").returncode == 2


def test_config_shows_no_password(project: Path) -> None:
    write_user(
        project, "[install]\nindex-url = 'https://me:s3cret@host/simple'\nfind-links = ['https://t0ken@host/w']\n"
    )
    for options in ([], ["--json"]):
        shown = call("config", "install", *options).stdout
        assert "https://host/simple" in shown
        assert "s3cret" not in shown
        assert "t0ken" not in shown


def test_config_init_writes_a_file_that_is_accepted(project: Path) -> None:
    done = call("config", "init", "--hosts", "localhost", "--home", str(project / "home"), "--forks", "4")
    assert done.returncode == 0, done.stderr
    text = (project / "ipexctl.toml").read_text()
    assert tomllib.loads(text) == {"hosts": "localhost", "forks": 4, "run": {}}
    assert "# ppn = " in text
    assert parse("run", "train.py").params["hosts"] == "localhost"
    commented = [line.removeprefix("# ") for line in text.splitlines() if line.startswith(("# ", "["))]
    sections = "\n".join(line for line in commented if line.startswith("[") or (" = " in line and "home" not in line))
    (project / "ipexctl.toml").write_text(sections)
    assert {"ppn", "exclude"} <= defaults_of(parse("run", "train.py")).keys()
    assert "packages" in defaults_of(parse("install"))
    assert targets_of(parse("doctor", "-c", "lab")).user == "me"
    assert call("config", "init", "--hosts", "localhost").returncode == 2
    assert call("config", "init", "--force", "--hosts", "localhost").returncode == 0


def test_the_groups_of_shared_options_are_disjoint() -> None:
    keys = [key for group in option_groups() for key in group]
    assert len(keys) == len(set(keys))
