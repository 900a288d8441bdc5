"""Calls of ipexctl that need no start of their own: a process that has imported the commands forks one for each.

In: arguments, a directory and variables. Out: exit code, stdout and stderr, as of `python -m ipexctl`; stdin is empty
and nothing is a terminal. A start takes 0.3 s of a processor, a fork 0.02. The rule: each call has a process of its
own, with all that `main` does up to its end. Not for imports, signals and closed streams: these need a real start.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

PROGRAM = """
import json, os, sys
sys.path.insert(1, sys.argv[1])
import version_table
from agent_helpers import with_code
from ipexctl.__main__ import main
from ipexctl.commands.app import commands, load_command
from ipexctl.remote import node_call

for name in commands():
    load_command(name)
plain = node_call.agent_zip
compiled = {("run",): with_code(plain("run"))}
node_call.agent_zip = lambda *folders: compiled.get(folders) or plain(*folders)
for line in sys.stdin:
    call = json.loads(line)
    if not (child := os.fork()):
        os.environ.clear()
        os.environ.update(call["env"])
        os.chdir(call["cwd"])
        for number, path in enumerate((os.devnull, call["out"], call["err"])):
            os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY), number)
        sys.stdin = open(0)
        sys.argv = ["ipexctl", *call["args"]]
        main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", PROGRAM, os.path.dirname(__file__)]
    server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.communicate)  # the end of its stdin is its end
    return server


def forked_call(*args: str, cwd: Path | str | None, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        request = {"args": args, "cwd": str(cwd or os.getcwd()), "env": dict(env), "out": out.name, "err": err.name}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(["ipexctl", *args], code, out.read(), err.read())
