"""A control machine that is no Linux, as far as a mount namespace of Linux can be one: for `test_foreign_control.py`.

| of a Mac | what stands for it |
| --- | --- |
| no /proc, no /sys | empty file systems over them |
| Python for macOS | this Python with `tests/stand_ins/darwin`: `darwin`, arm64, without the names that macOS lacks |
| BSD's programs | a PATH with ssh, ssh-keygen, sleep and `ps`, no other: no option of GNU can be used |
| `ps` | a program that reads a hidden /proc, and takes BSD's options alone |
| /bin/sh, a bash 3.2 | bash in its POSIX mode |
| 256 open files | `ulimit -S -n 256`, and no more than 10,240 |
| Objective-C, which a kernel of Jupyter uses (appnope) | a module with its one function, and macOS's version |
| `Application Support` | a home and a wheelhouse with a space in their names |
| /var, a link to /private/var | the directory for temporary files is reached through a link of root |

Not to be had here: APFS (`tests/unit/files/test_fetch_receiver.py` has its names), the Keychain, launchd's sockets,
Darwin's kernel (signals, terminals and limits are those of Linux), LibreSSL, and macOS's build of OpenSSH; uv is that
of Linux.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli_helpers import CommandResult
from darwin_names import MODULES, absent_names

_STAND_IN = Path(__file__).parents[1] / "stand_ins/darwin/sitecustomize.py"

_PYTHON = """\
#!/bin/sh
options=
while [ $# -gt 0 ] && [ "$1" != -c ] && [ "$1" != -m ]; do options="$options $1"; shift; done
case "$options$1" in
  *-I*-B*-c) exec {python} $options "$@" ;; # uv, which is Linux's here, asks for the Python of its own machine
  *-I*-c)
    code="exec(compile(open({site!r}).read(), 'darwin', 'exec'), {{}})
$2"
    shift 2
    exec {python} $options -c "$code" "$@"
    ;;
esac
PYTHONPATH={directory}${{PYTHONPATH:+:$PYTHONPATH}}
export PYTHONPATH
exec {python} $options "$@"
"""
"""Python without its site packages gets the stand-in in front of its code, any other as its sitecustomize."""

_PS = """\
#!{python} -IS
import os, sys, time
options, keywords, pid = sys.argv[1:], [], ""
while options:
    option, value, *options = options
    if option == "-o" and value in ("stat=", "lstart="):
        keywords.append(value)
    elif option == "-p" and value.isdigit():
        pid = value
    else:
        sys.exit("ps: illegal option -- " + option)
try:
    fields = open("{proc}/" + pid + "/stat").read().rpartition(")")[2].split()
except OSError:
    sys.exit(1)
booted = next(int(line.split()[1]) for line in open("{proc}/stat") if line.startswith("btime"))
started = time.localtime(booted + int(fields[19]) // os.sysconf("SC_CLK_TCK"))
shown = {{"stat=": fields[0] + "s  ", "lstart=": time.strftime("%a %b %e %H:%M:%S %Y", started)}}
print(*(shown[keyword] for keyword in keywords))
"""

_ENTER = """\
set -e
mount --bind /proc {proc}
mount -t tmpfs none /proc
mount -t tmpfs none /sys
mount --bind /bin/bash "$(readlink -f /bin/sh)"
ulimit -S -n 256
cd "$1"
shift
exec /usr/bin/env -i "$@"
"""


@dataclass(frozen=True)
class ForeignMachine:
    """A control machine without Linux."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "Home of me"

    @property
    def disk(self) -> Path:
        """The directory of its projects."""
        return self.root / "disk"

    def argv(self, *args: object, cwd: Path | None = None) -> list[str]:
        return self.python("-m", "ipexctl", *args, cwd=cwd)

    def python(self, *args: object, cwd: Path | None = None, packages: Path | None = None) -> list[str]:
        """A call of its Python; `packages`: a directory with more of them."""
        names = {
            "HOME": self.home,
            "PATH": self.root / "bin",
            "TMPDIR": self.root / "var/T",
            "LANG": "en_US.UTF-8",
            "PIP_CONFIG_FILE": os.devnull,
            "TERM": "xterm-256color",
            **({} if packages is None else {"PYTHONPATH": packages}),
        }
        script = _ENTER.format(proc=shlex.quote(str(self.root / "proc")))
        words = [*(f"{name}={value}" for name, value in names.items()), self.root / "python", *args]
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", cwd or self.disk, *words]
        return [str(word) for word in argv]

    def call(self, *args: object, rc: int | None = 0, cwd: Path | None = None, timeout: float = 60) -> CommandResult:
        done = subprocess.run(
            self.argv(*args, cwd=cwd), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False
        )
        out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
        ran = CommandResult(done.returncode, out, err, 0)
        assert "Traceback" not in ran.err + ran.out, ran.err + ran.out
        assert rc is None or ran.rc == rc, f"{ran.rc}\n{ran.err}\n{ran.out}"
        return ran

    def begin(self, *args: object, **streams: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.argv(*args), stdin=subprocess.DEVNULL, start_new_session=True, **streams)


def foreign_machine(root: Path) -> ForeignMachine:
    for name in ("bin", "site", "proc", "disk", "private/var/T", "Home of me"):
        (root / name).mkdir(parents=True)
    (root / "var").symlink_to(root / "private/var")
    for program in ("ssh", "ssh-keygen", "sleep"):
        found = shutil.which(program, path="/usr/bin:/bin")
        assert found is not None
        (root / "bin" / program).symlink_to(found)
    own, python = root / "python", os.path.realpath(sys.executable) if sys.prefix == sys.base_prefix else sys.executable
    site = root / "site/sitecustomize.py"
    names = {module: sorted(absent_names(module)) for module in MODULES if module not in ("errno", "stat")}
    own_names = f"NAMES = {names!r}\nPYTHON = {str(own)!r}\nDIRECTORY = {str(site.parent)!r}\n"
    site.write_text(own_names + _STAND_IN.read_text())
    _write(own, _PYTHON.format(site=str(site), directory=shlex.quote(str(site.parent)), python=shlex.quote(python)))
    _write(root / "bin/ps", _PS.format(python=os.path.realpath(sys.executable), proc=root / "proc"))
    return ForeignMachine(root)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
