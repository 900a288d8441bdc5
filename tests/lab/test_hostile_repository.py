"""A malicious repository: commands that only read run none of its programs and write nothing into it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import ipexctl
from cli_helpers import NO_HOSTS_ENV
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab

MPI_LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]


MODULES = ("rich", "yaml", "jinja2", "paramiko", "ipexctl", "sitecustomize", "usercustomize", "torch", "click")
PROGRAMS = ("ssh", "git", "uname", "python3", "sh", "rsync", "uv", "mpirun")
ESCAPES = "\x1b]52;c;eA==\x07\x1b[2J"
BOOK = """\
- hosts: all
  tasks:
    - exec: touch RAN/exec
    - debug: {msg: "{{ harmless | default('none') }}"}
      ignore_errors: true
    - copy: {src: files/, dest: /tmp/copied}
    - sync:
"""
DELEGATED = """\
- hosts: all
  tasks:
    - exec: touch RAN/delegated
      delegate_to: localhost
"""
COMMANDS = {
    "doctor": ("doctor", "--no-network"),
    "run": ("run", "--dry-run", "--ppn", "1", "train.py"),
    "sync": ("sync", "--dry-run"),
    "play": ("play", "--check", "site.yml"),
    "play-delegated": ("play", "--check", "delegated.yml"),
}
SYSTEM_CALLS = "execve,execveat,open,openat,openat2,creat,mkdir,mkdirat,mknodat,rename,renameat,renameat2,link,linkat"
CALL = re.compile(r'(?P<name>\w+)\((?:[^"]*?<(?P<directory>[^>]*)>, )?"(?P<path>(?:[^"\\]|\\.)*)"(?P<rest>.*)')
"""A line of strace, with `-y`."""
UNNAMED = re.compile(re.escape(tempfile.gettempdir()) + r"/[a-z0-9_]{8}")
"""Python's tempfile tries whether it can make a file in the temporary directory, and removes it."""
BYTECODE = re.compile(re.escape(str(Path(ipexctl.__file__).parent)) + r"/(?:\w+/)*__pycache__\b")
"""Python writes it beside ipexctl's own modules, at their first import."""


class Repository:
    """The repository, beside it a directory that its programs would write to, and the user's home."""

    def __init__(self, base: Path) -> None:
        self.base, self.path, self.ran, self.home = base, base / "repository", base / "ran", base / "home"
        for directory in (self.path, self.ran, self.home):
            directory.mkdir()
        (base / "secret").write_text("of the user\n")
        self._settings()
        self._programs()
        self._names()

    def _write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("RAN", str(self.ran)))
        path.chmod(mode)

    def _settings(self) -> None:
        self._write("hostfile", "[all]\nnode1\nnode2\n")
        config = "Match exec 'touch RAN/match'\nHost *\n  ProxyCommand touch RAN/proxy\n"
        for name in ("cfg", "ssh_config", ".ssh/config"):
            self._write(name, config)
        variables = (
            "harmless: \"{{ lookup('pipe', 'touch RAN/lookup') }}{{ ''.__class__.__mro__[1].__subclasses__() }}\"\n"
            "ansible_ssh_common_args: -F cfg\nansible_connection: local\nansible_python_interpreter: ./python3\n"
            "ansible_ssh_executable: ./ssh\nssh_config: cfg\n"
        )
        for name in ("group_vars/all.yml", "host_vars/node1.yml"):
            self._write(name, variables)
        self._write("host_vars/node2.yml", "a: &a [x, x, x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b]\n")
        self._write(".ipexctlignore", f"[\n/../**\n*a*a*b\n{ESCAPES}\n../secret\n{'x' * 10_000}\n**/**/**/q\n")
        self._write("site.yml", BOOK)
        self._write("delegated.yml", DELEGATED)
        for name in ("ansible.cfg", "uv.toml", "pip.conf", "setup.cfg", ".env", ".envrc"):
            self._write(name, "[defaults]\nssh_config=cfg\nindex-url=http://127.0.0.1:9/\nX=$(touch RAN/env)\n")
        self._write(
            "ipexctl.toml", "forks = 3\n[run]\nexport = ['LD_PRELOAD=./x.so', 'BASH_ENV=./sh']\nbackend = 'gloo'\n"
        )
        self._write(".git/config", "[core]\n  fsmonitor = touch RAN/fsmonitor\n  sshCommand = touch RAN/git\n")
        self._write(".git/hooks/post-checkout", "#!/bin/sh\ntouch RAN/hook\n", 0o755)

    def _programs(self) -> None:
        for name in PROGRAMS:
            self._write(name, f"#!/bin/sh\ntouch RAN/program-{name}\n", 0o755)
        for name in MODULES:
            self._write(f"{name}.py", f"open('RAN/module-{name}', 'w')\n")
        self._write("train.py", "import torch, rich\nopen('RAN/script', 'w')\n")

    def _names(self) -> None:
        odd = (
            "a\nb.py",
            f"{ESCAPES}.txt",
            "$(touch name).sh",
            "`touch name`",
            "-rf",
            " ",
            "--delete",
            "{{ x }}",
            "a" * 255,
        )
        for name in odd:
            (self.path / name).write_text("odd\n")
        (self.path / "files").mkdir()
        (self.path / "files" / f"{ESCAPES}\n").write_text("odd\n")
        os.close(os.open(os.fsencode(self.path) + b"/\xff\xfe.py", os.O_CREAT | os.O_WRONLY))
        deep = self.path / Path(*["d"] * 200)
        deep.mkdir(parents=True)
        for name, target in (
            ("out", "/etc"),
            ("up", "../secret"),
            ("loop", "."),
            ("files/gone", "nothing"),
            ("me", "me"),
        ):
            (self.path / name).symlink_to(target)
        for name in ("fifo", "files/fifo"):
            os.mkfifo(self.path / name)
        os.mknod(self.path / "zero", 0o20666, os.makedev(1, 5))
        with socket.socket(socket.AF_UNIX) as listening:
            before = Path.cwd()
            os.chdir(self.path)  # a socket's path is at most 108 bytes long
            listening.bind("socket")
            os.chdir(before)

    def state(self) -> dict[str, tuple[int, int, int]]:
        """Every file outside the user's home, with mode, size and time of change."""
        found = {}
        for top, directories, files in os.walk(self.base):
            if top == str(self.base):
                directories.remove("home")
            for name in (*directories, *files):
                status = os.lstat(os.path.join(top, name))
                found[os.path.join(top, name)] = (status.st_mode, status.st_size, status.st_mtime_ns)
        return found


def programs_and_writes(trace: str) -> tuple[set[str], set[str]]:
    """The programs that processes started, and the paths of files and directories that they made or opened to write."""
    programs, written = set(), set()
    for line in trace.splitlines():
        call = CALL.search(line)
        if call is None or re.search(r" = -1 E\w+ ", line):
            continue
        path = os.path.join(call["directory"] or "/", call["path"])
        if call["name"].startswith("exec"):
            programs.add(path)
        elif not call["name"].startswith("open") or re.search("O_WRONLY|O_RDWR|O_CREAT", call["rest"]):
            written.add(path if "O_TMPFILE" not in call["rest"] else "/dev/null")
    return programs, written


@pytest.mark.parametrize(
    ("command", "ignore_file"),
    [*((command, "text") for command in COMMANDS), ("sync", "fifo"), ("sync", "link"), ("run", "device")],
)
def test_hostile_repository_runs_and_writes_nothing(command: str, ignore_file: str, lab: Lab, tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    ignored = repository.path / ".ipexctlignore"
    if ignore_file != "text":
        ignored.unlink()
    if ignore_file == "fifo":
        os.mkfifo(ignored)
    elif ignore_file == "link":
        ignored.symlink_to("/dev/zero")
    elif ignore_file == "device":
        os.mknod(ignored, 0o20666, os.makedev(1, 5))
    before = repository.state()
    name, *arguments = COMMANDS[command]
    program = Path(sys.executable).with_name("ipexctl")
    assert program.exists()
    strace, trace = shutil.which("strace"), repository.home / "trace"
    traced = f"{strace} -f -y -qq --seccomp-bpf -s 4096 -e trace={SYSTEM_CALLS} -o {trace}".split() if strace else []
    done = subprocess.run(
        [*traced, program, name, "--ssh-config", lab.ssh_config, "--timeout", "20", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=repository.path,
        env={**os.environ, **NO_HOSTS_ENV, "HOME": str(repository.home), "XDG_STATE_HOME": "", "XDG_CACHE_HOME": ""},
        timeout=60,
        check=False,
    )
    output = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
    print(f"exit code {done.returncode}\n{output}")
    assert done.returncode in ((2,) if command == "play-delegated" else (0, 1))
    assert "Traceback" not in output
    assert "did not expect this" not in output
    assert list(repository.ran.iterdir()) == []
    assert repository.state() == before
    if strace:
        programs, written = programs_and_writes(trace.read_text(errors="replace"))
        print(f"programs {sorted(programs)}\nwritten {sorted(written)}")
        assert str(program) in programs
        # The tests' own ssh, the first of PATH, starts the next one.
        ssh = {os.path.join(directory, "ssh") for directory in os.environ["PATH"].split(os.pathsep)}
        # A waiting sh ends a playbook whose template no signal ends (`addons/play/template_limits.py`).
        shells = {"/usr/bin/sh", "/bin/sh"} if command.startswith("play") else set()
        assert programs <= {str(program), sys.executable, *ssh, *shells}
        own = tuple(f"{repository.home}/{name}/" for name in (".cache", ".local"))
        foreign = {path for path in written if not f"{path}/".startswith(("/dev/", *own))}
        assert {path for path in foreign if not UNNAMED.fullmatch(path) and not BYTECODE.match(path)} == set()
        trace.unlink()
    assert {path.name for path in repository.home.iterdir()} <= {".cache", ".local"}
    for directory in (".cache", ".local/state", ".local/share"):
        if (repository.home / directory).exists():
            assert [path.name for path in (repository.home / directory).iterdir()] in ([], ["ipexctl"])
    shutil.rmtree(repository.path)
