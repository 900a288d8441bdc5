"""The command line: help, usage errors and unexpected errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import typer
import yaml
from typer.main import get_command

import ipexctl
from case_table import literals_of
from forked_calls import forked_call
from ipexctl.addons_list import COMMANDS as ADDONS
from ipexctl.commands.app import CORE, app, commands, groups, load_command
from ipexctl.commands.option_groups import ConfiguredCommand
from ipexctl.commands.run_arguments import PANELS
from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.host import Host
from message_data import missing
from record_helpers import run_record


def call(*args: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return forked_call(*args, cwd=cwd, env={**os.environ, "COLUMNS": "80", **(env or {})})


def started(*args: str, stdout: IO[Any] | int = subprocess.PIPE, **more: Any) -> subprocess.CompletedProcess[str]:
    """A call with a start of its own."""
    argv = [sys.executable, "-m", "ipexctl", *args]
    return subprocess.run(argv, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=60, **more)


def run_program(*argv: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run another program, with its output as text."""
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, **more)


@pytest.mark.core
def test_skill_for_agents_is_the_file_of_the_wheel() -> None:
    skill = Path(ipexctl.__file__).with_name("SKILL.md").read_text()
    assert started("--skill").stdout == skill
    assert yaml.safe_load(skill.split("---\n")[1]).keys() == {"name", "description"}


@pytest.mark.core
def test_version() -> None:
    assert started("--version").stdout == f"ipexctl {ipexctl.__version__}\n"


def all_commands() -> Iterator[tuple[str, Any]]:
    """Every command and subcommand with its full name."""
    for name in commands():
        command = load_command(name)
        below = getattr(command, "commands", {})
        yield from ((name, command), *((f"{name} {label}", leaf) for label, leaf in below.items()))


def test_help_of_every_command_fits_80_columns_and_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, command in all_commands():
        text = command.get_help(typer.Context(command, info_name=f"ipexctl {name}"))
        assert "\x1b" not in text, name
        assert max(len(line) for line in text.splitlines()) <= 80, name
        assert "[default:" not in text, name  # a help text says its default itself: (default: ...)
        assert "Example: ipexctl " in text, name


@pytest.mark.core
@pytest.mark.parametrize("command", [[], ["run"], ["lab", "up"]])
def test_help_is_shown(command: list[str]) -> None:
    done = call(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: {' '.join(['ipexctl', *command])} ")
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert ("Example: ipexctl " if command else "ipexctl run train.py") in done.stdout


HOST_OPTIONS = (
    "--hostfile -H --hosts --limit -l --forks -f --user --port --identity --ssh-config --known-hosts --host-keys "
    "--iface --home --connect-timeout --timeout --json -q -v --no-color"
)
HOST_COMMANDS = ("doctor", "versions", "install", "envs", "sync", "exec", "fetch", "run", "play", "uninstall")


def test_host_commands_have_all_host_options() -> None:
    for name, command in all_commands():
        if name in HOST_COMMANDS:
            options = [option for param in command.params for option in param.opts]
            assert set(HOST_OPTIONS.split()) <= set(options), name


WRONG_CALLS = literals_of(__file__, "wrong_calls")
"""Each ends with exit code 2; the golden tests have their messages."""


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["exec"], "Usage:"),
        (["run"], "the script is missing"),
        (["run", "--ppn", "two", "x.py"], "--ppn must be a whole number, not 'two'"),
        (["envs", "--hosts", "localhost", "--remove", "nosuch"], "'nosuch' does not exist on localhost"),
        (["run", "."], "'.'"),
        (["lab", "break", "node1", "nonsense"], "error:"),
    ],
)
def test_usage_errors_exit_with_code_2(args: list[str], shown: str) -> None:
    done = call(*args)
    assert done.returncode == 2
    assert shown in done.stderr + done.stdout


@pytest.mark.parametrize("command", [["run", "--dry-run"]])
def test_json_document_is_printed_for_a_refused_plan(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("print(1)\n")
    words = ("--hosts", "localhost", "--home", str(tmp_path / "home"), "--python", "/nowhere/python", "--json", "x.py")
    done = call(*command, *words, cwd=tmp_path)
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert (said["status"], said["hosts"]) == ("failed", ["localhost"])
    assert said["schema"].startswith("ipexctl.")
    assert "/nowhere/python" in said["reason"]
    assert said["fix"]


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [("print(1)\n", 0, ""), ("import frobnicate\n", 1, "frobnicate"), ("import sys\nx = (\n", 2, "x.py:2")],
)
def test_a_dry_run_ends_as_the_run_would(text: str, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(text)
    place = ("--hosts", "localhost", "--home", str(tmp_path / "home"), "--python", sys.executable)
    done = call("run", "--dry-run", *place, "x.py", cwd=tmp_path)
    assert (done.returncode, said in done.stderr) == (code, True)


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["doctor", "-H", "/no/such/file"], "/no/such/file"),
        (["doctor", "--nonsense"], "--nonsense"),
        (["sync", "--forks", "0"], "--forks"),
        (["install", "--hosts", "localhost", "--torch", "9.9"], "9.9"),
        pytest.param(["lab", "down", "--lab", "nolab"], "nolab", marks=pytest.mark.needs("sshd", "ip", "mkfs.ext4")),
    ],
)
def test_json_document_is_printed_for_usage_errors(args: list[str], reason: str) -> None:
    done = call(*args, "--json")
    assert done.returncode == 2
    said = json.loads(done.stdout)
    assert said["schema"] == f"ipexctl.{'lab-down' if args[0] == 'lab' else args[0]}/1"
    assert said["status"] == "failed"
    assert reason in said["reason"]
    assert reason in done.stderr


@pytest.mark.signals
@pytest.mark.parametrize("command", ["doctor", "versions"])
def test_json_document_is_printed_after_an_interrupt(command: str, tmp_path: Path) -> None:
    under_way = tmp_path / "under-way"
    config = tmp_path / "config"
    config.write_text(f"Host far\n  ProxyCommand sh -c 'touch {under_way}; sleep 60'\n")
    called = subprocess.Popen(
        [sys.executable, "-m", "ipexctl", command, "--hosts", "far", "--ssh-config", str(config), "--json"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 30
    while not under_way.exists() and time.monotonic() < until:
        time.sleep(0.05)
    called.send_signal(signal.SIGINT)
    out, _ = called.communicate(timeout=30)
    said = json.loads(out)
    assert (called.returncode, said["schema"], said["status"]) == (130, f"ipexctl.{command}/1", "interrupted")


@pytest.mark.parametrize("command", ["stop", "attach", "why", "logs"])
def test_run_argument_defaults_to_last_except_for_stop_and_attach(command: str, tmp_path: Path) -> None:
    registry = RunRegistry(tmp_path / "ipexctl/runs")
    for number, run in enumerate(("a-1120-100000-aaaa", "b-1120-110000-bbbb")):
        here = Host(name="localhost", address="localhost")
        home, project = str(tmp_path / "home"), str(tmp_path)
        registry.save(run_record(run, here, home, sys.executable, started=float(number), project=project))
    done = call(command, cwd=tmp_path, env={"XDG_STATE_HOME": str(tmp_path)})
    assert "Usage:" not in done.stdout + done.stderr
    asks = command in ("stop", "attach")
    assert done.returncode == (2 if asks else 1)
    assert (f"  ipexctl {command} b-1120-110000-bbbb\n" in done.stderr) == asks
    assert call(command, env={"XDG_STATE_HOME": str(tmp_path / "none")}).returncode == 2


@pytest.mark.parametrize("command", ["why", "logs", "report", "fetch"])
def test_the_last_run_of_another_project_is_meant_only_by_its_name(command: str, tmp_path: Path) -> None:
    for name in ("ours", "theirs", "plain"):
        (tmp_path / name).mkdir()
    for name in ("ours", "theirs"):
        (tmp_path / name / "pyproject.toml").touch()
    here, project = Host(name="localhost", address="localhost"), str(tmp_path / "theirs")
    record = run_record("b-1120-110000-bbbb", here, str(tmp_path / "home"), sys.executable, project=project)
    RunRegistry(tmp_path / "ipexctl/runs").save(record)
    words = {"fetch": ("last:checkpoints", "there"), "report": ("last", "-o", "page.html")}.get(command, ("last",))
    env = {"XDG_STATE_HOME": str(tmp_path)}

    done = call(command, *words, cwd=tmp_path / "ours", env=env)
    assert done.returncode == 2
    assert missing(done.stderr, "project last:all b-1120-110000-bbbb") == []
    if command == "why":  # one function decides, for all of them
        assert call(command, "last", cwd=tmp_path / "theirs", env=env).returncode == 1
        assert call(command, "last", cwd=tmp_path / "plain", env=env).returncode == 2
        assert call(command, "last:all", cwd=tmp_path / "plain", env=env).returncode == 1


def test_json_has_file_line_and_column_of_a_hostfile_error(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("node1\nnode2 slost=4\n")
    said = json.loads(call("exec", "-H", "hosts", "--json", "--", "true", cwd=tmp_path).stdout)
    assert (said["file"], said["line"], said["column"]) == ("hosts", 2, 7)


@pytest.mark.core
def test_hostfile_error_shows_position_and_caret(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("node1\nnode2 slost=4\n")
    done = call("exec", "--", "true", cwd=tmp_path, env={"IPEXCTL_HOSTFILE": ""})
    assert done.returncode == 2
    place, line, caret, *fix = done.stderr.splitlines()
    assert place.startswith("hostfile:2: ")
    assert line.strip() == "node2 slost=4"
    assert line[caret.index("^") :] == "slost=4"
    assert "slots" in " ".join([place, *fix])


@pytest.mark.core
def test_default_host_is_localhost(tmp_path: Path) -> None:
    done = call("exec", "--json", "--", "echo", "hi", cwd=tmp_path, env={"IPEXCTL_HOSTFILE": ""})
    document = json.loads(done.stdout)
    assert [(h["name"], h["status"], h["stdout"]) for h in document["hosts"]] == [("localhost", "ok", "hi\n")]


@pytest.mark.parametrize("command", [["versions", "--json"], ["sync", "--dry-run", "--hosts", "localhost"]])
def test_exit_code_is_141_if_the_reader_of_stdout_is_closed(command: list[str], tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as gone:
        ended = started(*command, cwd=tmp_path, stdout=gone)
    assert ended.returncode == 141
    assert "error" not in ended.stderr


@pytest.mark.core
@pytest.mark.parametrize("kind", ["ZeroDivisionError", "EOFError"])
def test_unexpected_error_prints_a_message_and_writes_a_private_log(tmp_path: Path, kind: str) -> None:
    program = (
        "import sys; sys.argv = ['ipexctl', 'exec', '--', 'echo', 'hunter2']\n"
        "import ipexctl.commands.target_hosts as h\n"
        f"def broken(_): raise {kind}('surprise')\n"
        "h.choose_hosts = broken\n"
        "from ipexctl.__main__ import main; main()"
    )
    release = tmp_path / "ipexctl-0.dist-info"
    release.mkdir()
    (release / "METADATA").write_text("Name: ipexctl\nProject-URL: Issues, https://example.org/issues\n")
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    done = run_program(sys.executable, "-c", program, env=environ)
    assert done.returncode == 1
    assert "ZeroDivisionError: surprise" in done.stderr or "ended too early" in done.stderr
    (log,) = tmp_path.rglob("error-*.log")
    assert f"https://example.org/issues with {log}" in done.stderr
    assert f"{kind}: surprise" in log.read_text()
    assert "hunter2" not in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.signals
@pytest.mark.parametrize("module", ["ipexctl.errors", "ipexctl.commands.app", "typer"])
def test_ctrl_c_during_an_import_ends_without_a_traceback(module: str) -> None:
    program = (
        "import os, runpy, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "sys.argv = ['ipexctl', '--version']\n"
        "runpy.run_module('ipexctl', run_name='__main__')"
    )
    done = run_program(sys.executable, "-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_cause_no_error(closed: str, tmp_path: Path) -> None:
    line = f"'{sys.executable}' -m ipexctl exec --hosts localhost -- true {closed}"
    done = run_program("sh", "-c", line, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.core
@pytest.mark.parametrize("how", [[], ["--gather"], ["--json"]])
def test_output_write_error_is_reported(how: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = started("exec", "--hosts", "localhost", *how, "--", "echo", "hi", stdout=full)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in done.stderr


def test_deleted_working_directory_is_a_usage_error(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    line = f"mkdir {gone} && cd {gone} && rmdir {gone} && '{sys.executable}' -m ipexctl exec -- true"
    done = run_program("sh", "-c", line)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_command_not_found_suggests_the_shell_option() -> None:
    done = call("exec", "--hosts", "localhost", "--", "df -h")
    assert missing(done.stderr, "localhost failed 127 --shell") == []


PRINT_PEAK_MEMORY = """
import atexit, re, runpy, sys
atexit.register(lambda: print(re.search(r"VmHWM:.*", open("/proc/self/status").read())[0], file=sys.stderr, flush=True))
runpy.run_module("ipexctl", run_name="__main__")
"""
"""Runs ipexctl and prints its peak memory: that of wait4 includes the process it was forked from."""


def test_exec_with_json_does_not_hold_the_output_in_memory(tmp_path: Path) -> None:
    size = 48_000_000
    line = f"yes 'a line' | head -c {size}"
    with (tmp_path / "document.json").open("wb") as out:
        argv = [sys.executable, "-c", PRINT_PEAK_MEMORY, "exec", "--hosts", "localhost", "--json", "--shell", line]
        done = subprocess.run(argv, stdout=out, stderr=subprocess.PIPE, text=True, check=True)
    assert int(done.stderr.split()[-2]) < 64_000  # kilobytes; the output alone is 48,000
    (host,) = json.loads((tmp_path / "document.json").read_bytes())["hosts"]
    assert len(host["stdout"]) == size


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\nb"])
@pytest.mark.parametrize(
    "argv",
    [
        ["run", "--env={}", "x.py"],
        ["install", "--env={}"],
        ["envs", "--remove={}"],
        ["envs", "--verify", "--env={}"],
    ],
)
def test_an_invalid_name_of_an_environment_is_a_wrong_call(argv: list[str], name: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    options = ["--hosts", "192.0.2.1", "--connect-timeout", "1"]
    at = 1
    done = call(*argv[:at], *options, *(arg.format(name) for arg in argv[at:]), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "192.0.2.1" not in done.stderr


RUN: Any = load_command("run")


def test_the_list_of_commands_begins_with_those_of_a_day() -> None:
    daily, others = groups().values()
    assert len(daily) == 10
    assert not daily.keys() & others.keys()
    assert daily.keys() | others.keys() == {*CORE, *ADDONS} == commands().keys()


def with_subcommands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    for below, subcommand in getattr(command, "commands", {}).items():
        yield f"{name} {below}", subcommand


EVERY = [pair for name in (*CORE, *ADDONS) for pair in with_subcommands(load_command(name), name)]


@pytest.mark.parametrize(("name", "command"), [("", get_command(app)), *EVERY], ids=lambda value: str(value))
def test_the_help_of_each_command_is_a_page_and_the_rest_is_behind_help_all(name: str, command: Any) -> None:
    context = command.context_class(command, info_name=f"ipexctl {name}".strip(), terminal_width=80)
    lines = command.get_help(context).splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    if isinstance(command, ConfiguredCommand):
        assert f"ipexctl {name} --help-all" in lines[-1]
        assert not any(line.strip().startswith(("--known-hosts", "--connect-timeout")) for line in lines)
        full = command.get_full_help(context)
        options = [option for param in command.params if not getattr(param, "hidden", False) for option in param.opts]
        assert [option for option in options if option.startswith("-") and option not in full] == []
    elif not name:
        assert lines.index("Every day:") < lines.index("Others:") < 18 < lines.index("Options:")
        assert [sum(line.strip().startswith(f"--{word}") for line in lines) for word in ("known-hosts", "user")] == [
            1,
            1,
        ]


def test_each_option_of_run_is_in_one_panel() -> None:
    counts = Counter(name for names in PANELS.values() for name in names)
    assert set(counts.values()) == {1}
    assert {param.name for command in (RUN,) for param in command.params} == counts.keys()


@pytest.mark.parametrize("command", [RUN], ids=lambda command: command.name)
def test_the_help_has_every_option(command: Any) -> None:
    text = command.get_full_help(command.make_context("x", ["--", "train.py"]))
    options = [option for param in command.params if param.name != "words" for option in param.opts]
    assert [option for option in options if option not in text] == []


def test_the_help_of_run_has_the_options_that_most_need_and_names_the_rest() -> None:
    context = RUN.make_context("ipexctl run", ["--", "train.py"])
    text, full = RUN.get_help(context), RUN.get_full_help(context)
    options = re.findall(r"^  (?:-\w, )?(--?\w[\w-]*)", text, re.MULTILINE)
    shown = [param.name for param in RUN.get_params(context) if max(param.opts, key=len) in options]
    assert {*shown} == (RUN.most_used & {param.name for param in RUN.params}) - {"words"} | {"help", "help_all"}
    assert len(text.splitlines()) <= 60 < 80 < len(full.splitlines())


@pytest.mark.parametrize(
    "call", ["run --help-all", "run --ppn 0 --help-all --config missing.toml", "exec --help-all", "install --help-all"]
)
def test_help_all_shows_every_option_and_starts_nothing(call: str) -> None:
    done = forked_call(*call.split(), cwd=None, env=os.environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--host-keys" in done.stdout


@pytest.mark.parametrize("name", ["why", "run", "install", "lab"])
def test_the_help_has_no_placeholder(name: str) -> None:
    command: Any = load_command(name)
    texts = [command.help or "", *(getattr(param, "help", None) or "" for param in command.params)]
    assert [text for text in texts if "{" in text] == []


def test_help_hides_the_json_option_of_commands_without_json_output() -> None:
    def help_of_json(name: str) -> str:
        command: Any = load_command(name)
        param = next(param for param in command.params if param.name == "json")
        return "" if param.hidden else str(param.help)

    assert "--dry-run" in help_of_json("run")
    assert [help_of_json("stop"), help_of_json("attach")] == ["", ""]
    assert "--dry-run" not in help_of_json("why")


@pytest.mark.parametrize(
    ("argument", "name"),
    [("--nproc-per-node", "ppn"), ("--nproc_per_node", "ppn"), ("--num_processes", "n"), ("--num-processes", "n")],
)
def test_options_of_torchrun_and_accelerate_are_accepted(argument: str, name: str) -> None:
    for arguments in ([f"{argument}=3"], [argument, "3"], ["--ppn", "2", argument, "3"]):
        params = RUN.make_context("run", [*arguments, "train.py", argument, "5"]).params
        assert params[name] == 3
        assert list(params["words"]) == ["train.py", argument, "5"]
