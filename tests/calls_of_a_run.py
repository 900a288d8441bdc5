"""The code that one `ipexctl run` on localhost executes: how many functions in how many files, how deeply nested;
and how many classes its imports make.

`python -m tests.calls_of_a_run [-v] [ROOT]`, with ROOT another checkout to compare, such as one of a tag. It calls the
command in this process under `sys.setprofile`, with a HOME of its own; the agent's programs are not counted. `-v`
prints the calls of `start_run` as a tree, without those in its threads.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROGRAM = """
import inspect, sys, threading
package, tree = sys.argv[1], sys.argv[2] == "-v"
functions, classes, depths, lines = set(), set(), {}, []

def profile(frame, event, argument):
    code = frame.f_code
    if not code.co_filename.startswith(package) or code.co_name.startswith("<"):
        return
    if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a class, which its import executes
        classes.add((code.co_filename, code.co_name, code.co_firstlineno))
        return
    thread = threading.get_ident()
    if event == "call":
        functions.add((code.co_filename, code.co_name, code.co_firstlineno))
        depth = depths[thread] = depths.get(thread, 0) + 1
        depths["most"] = max(depths.get("most", 0), depth)
        lines.append((thread, depth, code.co_name, code.co_filename[len(package) + 1 :]))
    elif event == "return":
        depths[thread] = depths.get(thread, 1) - 1

sys.argv = ["ipexctl", *sys.argv[3:]]
import os

def leave(code):  # ipexctl ends without waiting for threads
    raise SystemExit(code)

os._exit = leave
from ipexctl.__main__ import main

threading.setprofile(profile)
sys.setprofile(profile)
try:
    main()
except SystemExit as done:
    code = done.code
finally:
    sys.setprofile(None)
    threading.setprofile(None)
files = {name for name, _, _ in functions}
imported = len({name for name, _, _ in classes} - files)
print(
    f"exit code {code}: {len(functions)} functions in {len(files)} files, {depths['most']} nested; "
    f"{len(classes)} classes, which adds {imported} files that are only imported",
    file=sys.stderr,
)
if tree:
    start = next(at for at, (_, _, name, _) in enumerate(lines) if name == "start_run")
    thread, depth = lines[start][:2]
    for of, at, name, file in lines[start:]:
        if of == thread and at < depth:
            break
        if of == thread and at <= depth + 3:
            print("  " * (at - depth) + f"{name} ({file})", file=sys.stderr)
"""


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "-v"]
    root = Path(words[0]).resolve() if words else ROOT
    with tempfile.TemporaryDirectory() as home:
        project = Path(home) / "project"
        project.mkdir()
        (project / "train.py").write_text("print('one line')\n")
        environ = {"HOME": home, "PATH": os.environ["PATH"], "PYTHONPATH": str(root)}
        call = f"run --hosts localhost --python {shlex.quote(sys.executable)} -n 1 train.py"
        verbose = "-v" if "-v" in sys.argv[1:] else "-q"
        argv = [sys.executable, "-c", PROGRAM, str(root / "ipexctl"), verbose, *shlex.split(call)]
        return subprocess.run(argv, cwd=project, env=environ, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
