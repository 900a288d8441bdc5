"""Records an account that a version of ipexctl has used: `python tests/data/record_account.py CHECKOUT FILE.tar.xz`.

By calls on localhost, the ipexctl of CHECKOUT makes an environment from tiny wheels, the project's tree, and three
runs of two ranks: one ok, one failed, one restarted. FILE has what these calls left: `home`, `state` and `project`, and
the agent of the runs as a directory, `agent`, beside the hooks of their ranks. The paths of the account and of its
Python are in it as @ACCOUNT@ and @BASE@, which `tests/process/test_older_account.py` fills in; the hash of bin/f2py, in
which they stand, is left out.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_wheels import write_stack

PROJECT = {
    "ipexctl.toml": '[run]\nppn = 2\nexport = ["LEVEL=3"]\nexclude = ["*.tmp"]\n\n[install]\nstack = "torch"\n',
    "play.yml": """\
- hosts: all
  tasks:
    - name: note
      copy: {content: "made\\n", dest: "~/note.txt"}
    - name: train
      environment: {LEVEL: "3"}
      run: {script: train.py, ppn: 1}
""",
    "train.py": """\
import os
import sys
import time
from pathlib import Path

import torch

what = sys.argv[1] if len(sys.argv) > 1 else "ok"
rank = os.environ["RANK"]
done = Path(os.environ["IPEXCTL_RUN_DIR"], f"checkpoint-{rank}.txt")
print("torch", torch.__version__, flush=True)
first = int(done.read_text()) if done.exists() else 0
for step in range(first, 4):
    print("step", step, "level", os.environ["LEVEL"], flush=True)
    done.write_text(str(step + 1))
    if what == "failed" and step == 2 and rank == "1":
        raise ValueError("step 2 is no good")
    if what == "restarted" and step == 2 and rank == "1" and first == 0:
        sys.exit(3)
    time.sleep(0.3)
""",
}
CALLS = (
    ("install", "--offline"),
    ("run", "train.py"),
    ("run", "train.py", "failed"),
    ("run", "--max-restarts", "1", "train.py", "restarted"),
)
LEFT_OUT = ("home/agent", "home/wheels", "__pycache__", "bin/python", "bin/activate", "bin/pydoc", "agent.zip", "/shim")


def main() -> None:
    checkout, file = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory(prefix="account-") as made:
        account = Path(made)
        write_stack(account / "wheels", torch="2.13.0", ipex=None, impi=None, python="cp311")
        (account / "project").mkdir()
        for name, text in PROJECT.items():
            (account / "project" / name).write_text(text)
        variables = {"PATH": os.environ["PATH"], "HOME": made, "PYTHONPATH": str(checkout), "LANG": "C.UTF-8"}
        variables |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(account / "wheels")}
        for call in CALLS:
            argv = [sys.executable, "-m", "ipexctl", *call, "--hosts", "localhost"]
            subprocess.run(
                [*argv[:4], *argv[-2:], *call[1:]], cwd=account / "project", env=variables, check="failed" not in call
            )
        base = str(Path(account / ".ipexctl/envs/default/bin/python").resolve().parent)
        with tarfile.open(file, "w:xz") as archive:
            run = next((account / ".ipexctl/runs").glob("*/agent.zip")).parent
            with zipfile.ZipFile(run / "agent.zip") as agent:
                agent.extractall(account / "agent", [name for name in agent.namelist() if name.endswith(".py")])
            (run / "shim").rename(account / "shim")
            places = {
                "home": ".ipexctl",
                "state": ".local/state",
                **{name: name for name in ("project", "agent", "shim")},
            }
            for name, place in places.items():
                for path in sorted((account / place).rglob("*")):
                    known = f"{name}/{path.relative_to(account / place)}"
                    if not any(part in known for part in LEFT_OUT):
                        add(archive, path, known, {made: "@ACCOUNT@", base: "@BASE@"})


def add(archive: tarfile.TarFile, path: Path, name: str, replaced: dict[str, str]) -> None:
    member = archive.gettarinfo(path, name)
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    content = path.read_bytes() if member.isreg() else b""
    for old, new in replaced.items():
        content = content.replace(old.encode(), new.encode())
        member.linkname = member.linkname.replace(old, new)
    if path.name == "RECORD":
        content = re.sub(rb"(?m)(bin/f2py),.*$", rb"\1,,", content)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main()
