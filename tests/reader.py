"""Types the console blocks of README.md's sections, top to bottom, into a shell on a terminal: `.ci/bare` calls it in a
Debian 12 that has python3 alone.

    python3 tests/reader.py install       Install; the first lines, alone and on two hosts of a lab, and Remove; the
                                          other ways to install; and the last line of "Try it in a clone", as the
                                          others take longer
    python3 tests/reader.py clone         the lines before it

The commands are read from the page, so what the page says is what is typed. A question is answered with yes. Each
command must end with 0, print no traceback and print the words that `PROVES` wants; what a user removes must be gone.
Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from doc_blocks import ROOT, Block, blocks

CLONE = Path.cwd()
JOB = Path.home() / "job"
TRAIN = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(200):
    loss = (model(torch.randn(32, 64)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("rank", dist.get_rank(), "of", dist.get_world_size(), "loss", loss.item())
dist.destroy_process_group()
"""
USE, INSTALL, REMOVE, IN_A_CLONE = (
    ("README.md", heading) for heading in ("## Use", "## Install", "## Remove", "## Try it in a clone")
)
LAB = ("docs/lab.md", "## Before")
OTHER_INSTALLERS = ("docs/control-machine.md", "## Install")
BEFORE = {
    "pipx install .": ("pipx uninstall ipexctl || :",),
    "uv tool install .": ("ipexctl --version", "pipx uninstall ipexctl && pipx install uv"),
    "pip install .": (
        "ipexctl --version && uv tool uninstall ipexctl",
        "python3 -m venv ~/venv && . ~/venv/bin/activate",
    ),
}
"""What a reader of several ways to install does between them."""
PROVES = {
    "ipexctl run": r"rank 0 of (\d+) loss",
    "ipexctl why": "succeeded",
    "ipexctl report": r"\.html",
    "sh tests/run.sh": r"\d+ passed",
    "uv tool install": "Installed 1 executable",
    "pip install": "Successfully installed",
    "sh examples/lab.sh": "SIGKILL",
}
"""What the output of a command shows if the command did what the page says."""
QUESTION = re.compile(rb"[\[(]y/n[\])][?: ]*\Z", re.I)
CONTROL = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()][A-Z0-9]|\x1b[=>]|[^\n]*\r(?!\n)|[\r\x07]")
ENDED = re.compile(rb"\x01(\d+)\x02")
SHOWN = 14
"""Lines of each command's output in the log: the last ones."""
BROAD = 200
"""Columns of a line in the log: a live view draws all its frames into one."""
OTHERS_USE = {f"{Path.home()}/{name}" for name in (".cache", ".local", ".local/share", ".local/state")}
"""Directories of the account, in which other programs keep their files, too."""


@dataclass
class Terminal:
    """An interactive bash on a terminal of 80 columns, as a person opens it."""

    directory: Path
    fd: int = field(init=False)

    def __post_init__(self) -> None:
        pid, self.fd = pty.fork()
        if pid == 0:
            os.chdir(self.directory)
            os.environ |= {"TERM": "xterm-256color", "PROMPT_COMMAND": r'printf "\001$?\002"'}
            os.execvp("bash", ["bash", "-i"])
        os.set_blocking(self.fd, False)
        self._read(60)

    def type(self, line: str, seconds: float = 1200) -> str:
        """The output of a command that ended with 0; else the program ends with 1."""
        started = time.monotonic()
        os.write(self.fd, line.encode() + b"\n")
        code, output = self._read(seconds)
        text = CONTROL.sub(b"", output).decode(errors="replace")
        lines = [each.rstrip()[-BROAD:] for each in text.splitlines() if each.strip()][1:]
        print(f"\n$ {line}\n" + "\n".join(lines[-SHOWN:] if code == 0 else lines))
        print(f"[exit code {code}, {time.monotonic() - started:.1f} s]", flush=True)
        wanted = next((words for start, words in PROVES.items() if line.startswith(start)), "")
        is_ours = not line.startswith("sh tests/")  # pytest shows the tracebacks of its warnings
        if code != 0 or (is_ours and "Traceback (most recent call last)" in text) or not re.search(wanted, text):
            sys.exit(f"README.md: {line}: exit code {code}, and wanted in its output: {wanted or 'no traceback'}")
        return text

    def _read(self, seconds: float) -> tuple[int, bytes]:
        """The exit code and the output up to the next prompt."""
        output = b""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self.fd], [], [], min(left, 1.0))[0]:
                if QUESTION.search(CONTROL.sub(b"", output)):
                    os.write(self.fd, b"y\n")
                    output += b"y\n"
                continue
            with contextlib.suppress(BlockingIOError):
                output += os.read(self.fd, 65536)
            if ended := ENDED.search(output):
                return int(ended[1]), output[: ended.start()]
        return 124, output


def section(page: str, heading: str) -> list[Block]:
    """The blocks with commands below a heading of a page, up to the next heading of the second level."""
    lines = (ROOT / page).read_text().splitlines()
    start = lines.index(heading) + 1
    end = next((at for at, line in enumerate(lines[start:], start + 1) if line.startswith("## ")), len(lines))
    typed = (block for block in blocks(ROOT / page) if start < block.line < end and block.left_out is None)
    return [block for block in typed if block.commands()]


def type_section(page: str, heading: str, directory: Path, wanted: Callable[[str], bool] = bool) -> None:
    """The wanted lines of each block in a new terminal, as its reader opens one."""
    for block in section(page, heading):
        terminal = Terminal(directory)
        for command in (each for each in block.commands() if wanted(each.line)):
            for line in BEFORE.get(command.line.partition("  #")[0].strip(), ()):
                terminal.type(line)
            terminal.type(command.line)


def files() -> set[str]:
    """All paths of this system but those of mounts."""
    found = set()
    device = os.stat("/").st_dev
    for directory, names, others in os.walk("/"):
        names[:] = [name for name in names if os.lstat(f"{directory}/{name}").st_dev == device]
        found |= {f"{directory.rstrip('/')}/{each}" for each in (*names, *others)}
    return found


@contextlib.contextmanager
def nothing_stays() -> Iterator[None]:
    """What these commands leave is in the job's directory, or named by README.md."""
    before = files()
    yield
    named = [path.replace("USER", "root") for path in re.findall(r"`(/tmp/[\w/]+)`", (ROOT / "README.md").read_text())]
    allowed = (str(JOB), *named)
    left = sorted(each for each in files() - before - OTHERS_USE if not each.startswith(allowed))
    if left:
        sys.exit("left behind, and not named by README.md:\n" + "\n".join(left[:40]))


def use() -> None:
    with nothing_stays():
        type_section(*USE, JOB)
        type_section(*REMOVE, JOB)


def install() -> None:
    Terminal(CLONE).type("apt-get update -qq && apt-get install -y -qq --no-install-recommends pipx >/dev/null")
    type_section(*INSTALL, CLONE)
    JOB.mkdir()
    (JOB / "train.py").write_text(TRAIN)
    use()
    type_section(*LAB, CLONE)
    Terminal(JOB).type("ipexctl lab up --hosts 2 && mkdir -p -m 700 ~/.ssh")
    Terminal(JOB).type("cp /var/lib/ipexctl/labs/lab/ssh_config ~/.ssh/config && printf 'node1\\nnode2\\n' >hostfile")
    use()
    Terminal(JOB).type("ipexctl lab down")
    type_section(*OTHER_INSTALLERS, CLONE)
    type_section(*IN_A_CLONE, CLONE, makes_a_lab)


def clone() -> None:
    type_section(*IN_A_CLONE, CLONE, lambda line: not makes_a_lab(line))


def makes_a_lab(line: str) -> bool:
    return line.startswith("sh examples/lab.sh")


if __name__ == "__main__":
    {"install": install, "clone": clone}[sys.argv[1]]()
