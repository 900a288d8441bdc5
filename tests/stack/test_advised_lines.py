"""What a cause advises is typed, with the failure that it is for, in two ranks on this machine with real torch."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from real_helpers import require_package

from agent_helpers import wait_until
from cli_helpers import CommandResult, ipexctl
from ipexctl.known_errors.error_table import known_errors

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

HERE = "# here\n"
"""Where a script of a case gets the code that the fix names."""
TWO = ("--hosts", "localhost", "-n", "2", "--oversubscribe", "--plain")
GLOO = "import datetime, os, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"


LIMITS = {"files": "-n 100", "size": "-f 100", "time": "-t 3", "memory": "-v 700000", "high": "-n 1000"}
"""Name of a --setup file beside the script → its ulimit."""


@dataclass(frozen=True)
class Advised:
    """`typed` is in the fix as it stands."""

    id: str
    script: str
    typed: str
    how: str = "code"
    """code: in place of `instead` in the script; options: in place of `words`; line: the line of the fix that has it;
    shell: as a line, and then the run again."""
    words: tuple[str, ...] = ()
    """Options of the call that fails. `{here}` is the script's directory."""
    instead: str = HERE
    done: str = ""
    """What stands in place of `instead` once one does what `typed` says in words; empty if `typed` is that itself."""
    then: tuple[str, ...] = ()
    """Options of the call that is to succeed, if they are not what is typed."""
    argv: tuple[str, ...] = ()
    """Of the script."""
    file: str = "train.py"


CASES = (
    Advised("script.no_variable", "import os\nos.environ['DATA_DIR']\n", "-x DATA_DIR=VALUE", "options"),
    Advised("script.slurm_only", "import os\nos.environ['SLURM_PROCID']\n", "--slurm-env", "options"),
    Advised(
        "script.warning",
        "import warnings\nwarnings.warn('an old name', DeprecationWarning)\n",
        "-x PYTHONWARNINGS=default",
        "options",
        ("-x", "PYTHONWARNINGS=error"),
    ),
    Advised("script.encoding", "print('\\u00e9')\n", "-x LC_ALL=C.UTF-8", "options", ("-x", "PYTHONIOENCODING=ascii")),
    Advised(
        "script.weights_only",
        "import os, torch\nclass Net: pass\nPATH = f'net-{os.environ[\"RANK\"]}.pt'\ntorch.save(Net(), PATH)\n"
        "torch.load(PATH)\n",
        "torch.load(PATH, weights_only=False)",
        instead="torch.load(PATH)",
    ),
    Advised(
        "script.other_checkpoint",
        "import torch\nmodel = torch.nn.Linear(2, 2)\n"
        "state = {f'module.{name}': value for name, value in model.state_dict().items()}\n"
        f"{HERE}model.load_state_dict(state)\n",
        "torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, 'module.')",
    ),
    Advised(
        "ddp.unused_parameters",
        f"{GLOO}class M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)\n"
        "    def forward(self, x): return self.a(x)\n"
        f"model = torch.nn.parallel.DistributedDataParallel(M(),\n{HERE})\n"
        "for step in range(3): model(torch.randn(2, 4)).sum().backward()\n",
        "find_unused_parameters=True",
    ),
    Advised(
        "script.wants_mpi",
        "import torch.distributed as dist\ndist.init_process_group('mpi')\n",
        'init_process_group("gloo")',
        instead="init_process_group('mpi')",
    ),
    Advised(
        "script.no_main",
        "import torch\nclass D(torch.utils.data.Dataset):\n    def __len__(self): return 4\n"
        "    def __getitem__(self, at): return at\n"
        "if True:\n    from torch.utils.data import DataLoader\n"
        "    for _ in DataLoader(D(), num_workers=1, multiprocessing_context='spawn'): pass\n",
        "if __name__ == '__main__':",
        instead="if True:",
    ),
    Advised(
        "script.local_rank",
        f"import argparse\nparser = argparse.ArgumentParser()\n{HERE}parser.parse_args()\n",
        "parser.add_argument('--local-rank', type=int)",
        argv=("--local-rank=0",),
    ),
    Advised(
        "file.exists",
        f"import os, time\ntime.sleep(float(os.environ['RANK']))\nos.makedirs('out',\n{HERE})\n",
        "exist_ok=True",
    ),
    Advised("process.timer", f"import signal, time\nsignal.alarm(2)\n{HERE}time.sleep(5)\n", "signal.alarm(0)"),
    Advised(
        "script.found_no_gpu",
        "import sys, torch\nif not torch.cuda.is_available(): sys.exit('no GPU was found')\n",
        "--gpu-code assume",
        "line",
    ),
    Advised(
        "script.wants_cuda",
        "import torch\ntorch.zeros(1, device='cuda')\n",
        "--gpu-code auto",
        "line",
        ("--gpu-code", "off"),
    ),
    Advised(
        "script.arguments",
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--epochs')\nparser.parse_args()\n",
        "--epochs",
        "line",
        argv=("--epocs", "3"),
    ),
    Advised(
        "meet.too_few",
        "import datetime, os, torch.distributed as dist\nlimit = datetime.timedelta(seconds=5)\n"
        "dist.init_process_group('gloo', init_method=f\"tcp://127.0.0.1:{os.environ['MASTER_PORT']}\",\n"
        "    rank=int(os.environ['RANK']), world_size=3, timeout=limit)\n",
        "-n 3",
        "line",
    ),
    Advised(
        "script.no_interface",
        GLOO,
        "leave GLOO_SOCKET_IFNAME out",
        "options",
        ("-x", "GLOO_SOCKET_IFNAME=eth99"),
        then=("--plain",),
    ),
    Advised(
        "ddp.steps_differ",
        f"{GLOO}for name in set(map(str, range(3000, 3040))):\n    dist.all_reduce(torch.zeros(int(name)))\n",
        "-x PYTHONHASHSEED=0",
        "options",
    ),
    Advised(
        "ddp.models_differ",
        f"{GLOO}parts = {{name: torch.nn.Linear(int(name), 2) for name in set(map(str, range(2, 40)))}}\n"
        "torch.nn.parallel.DistributedDataParallel(torch.nn.ModuleDict(parts))\n",
        "-x PYTHONHASHSEED=0",
        "options",
    ),
    Advised("script.wants_nccl", GLOO.replace("gloo", "nccl"), "--gpu-code auto", "line", ("--gpu-code", "off")),
    Advised(
        "net.proxy",
        "import http.server, threading, urllib.request\nclass H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), H)\n"
        "threading.Thread(target=server.serve_forever, daemon=True).start()\n"
        "urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}/')\n",
        "-x NO_PROXY=HOST",
        "options",
        ("-x", "HTTP_PROXY=http://127.0.0.1:9"),
        then=("-x", "HTTP_PROXY=http://127.0.0.1:9", "-x", "NO_PROXY=127.0.0.1"),
    ),
    Advised(
        "limit.files",
        "kept = [open('/dev/null') for _ in range(200)]\n",
        "raise ulimit -n in a --setup file",
        "options",
        ("--setup", "{here}/files.sh"),
        then=("--setup", "{here}/high.sh"),
    ),
    Advised(
        "limit.file_size",
        "open('/dev/shm/large-%d' % __import__('os').getpid(), 'wb').write(bytes(1 << 20))\n",
        "raise it in a --setup file",
        "options",
        ("--setup", "{here}/size.sh"),
        then=("--setup", "{here}/high.sh"),
    ),
    Advised(
        "limit.cpu_time",
        "import time\nwhile time.process_time() < 6: pass\n",
        "raise it in a --setup file",
        "options",
        ("--setup", "{here}/time.sh"),
        then=("--setup", "{here}/high.sh"),
    ),
    Advised(
        "limit.memory",
        "import numpy\nnumpy.ones(1 << 30, 'uint8')\n",
        "raise it in a --setup file",
        "options",
        ("--setup", "{here}/memory.sh"),
        then=("--setup", "{here}/high.sh"),
    ),
    Advised(
        "limit.memory",
        "import numpy\nnumpy.ones((1 << 24, 64), 'uint8')\n",
        "use a smaller batch",
        "code",
        ("--setup", "{here}/memory.sh"),
        instead="(1 << 24, 64)",
        done="(1 << 10, 64)",
    ),
    Advised(
        "peer.ended",
        f"{GLOO}for step in range(3 + dist.get_rank()): dist.all_reduce(torch.zeros(4))\n",
        "let all ranks make equally many steps",
        instead="range(3 + dist.get_rank())",
        done="range(3)",
    ),
    Advised(
        "peer.timeout",
        "import datetime, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=4))\n"
        "time.sleep(8 * (1 - dist.get_rank()))\ndist.all_reduce(torch.zeros(4))\n",
        "timeout=datetime.timedelta(hours=1)",
        instead="timeout=datetime.timedelta(seconds=4)",
    ),
    Advised(
        "hang.mismatch",
        f"{GLOO}if dist.get_rank() == 0:\n    dist.barrier()\ndist.all_reduce(torch.zeros(4))\n",
        "none under `if rank == 0`",
        words=("--hang-after", "6", "--on-hang", "stop"),
        instead="if dist.get_rank() == 0:",
        done="if True:",
    ),
    Advised(
        "hang.at_exit",
        f"import threading, time\nthreading.Thread(\n    target=time.sleep, args=(60,),\n{HERE}).start()\n",
        "daemon=True",
        words=("--hang-after", "6", "--on-hang", "stop"),
    ),
    Advised(
        "wandb.no_key",
        "import wandb\nwandb.init(project='p')\nwandb.log({'loss': 1.0})\n",
        "-x WANDB_MODE=offline",
        "options",
    ),
    Advised(
        "script.no_compiler",
        "import torch\ntorch.compile(lambda x: x + 1)(torch.ones(2))\n",
        "leave CXX out of -x",
        "options",
        ("-x", "CXX=/usr/no-compiler"),
        then=("-x", "TORCH_COMPILE_DISABLE=1"),
    ),
    Advised("file.denied", "import subprocess\nsubprocess.run(['./prepare'])\n", "chmod +x ./prepare", "shell"),
    Advised("run.no_command", "#!/bin/sh\r\ntrue\r\n", "sed -i 's/\\r$//' -- go.sh", "shell", file="./go.sh"),
)
TYPED_ELSEWHERE = {
    "script.no_module": "lab/test_run_install.py, and unit tests of names of packages",
    "script.autocast": "stack/test_real_fast.py",
}
NOT_HERE = {
    "mpi.": "mpirun starts no rank on one host alone; lab/test_run_faults.py ends its programs",
    "ccl.": "no index has oneCCL's bindings",
    "hf.": "needs a hub; stack/test_hub_texts.py and test_hugging_face.py have its failures",
    "lightning.": "needs Lightning 1 and 2 beside one torch",
    "hang.": "an advice on the script's code; unit/run/recorded has the stacks",
    "peer.gone": "a look at the output of the other ranks",
    "node.": "needs a host that is lost; lab/test_run_faults.py",
    "memory.": "the whole machine would have to be short of memory",
    "disk.": "needs a full disk; process/test_supervisor.py and unit/node/run/rank/test_full_disk.py",
    "library.": "an advice on the installed packages; lab/test_install.py",
    "stack.": "needs packages built for another torch",
    "gloo.": "needs several hosts",
    "run.": "a record of ipexctl; the lines are looks at hosts",
    "process.": "a look at the output or at the host",
    "cpu.": "needs a processor without an instruction",
    "file.not_there": "lab/test_sync.py and test_push.py send files",
    "hydra.refused": "needs Hydra; unit/run/test_run_why.py has its words",
    "meet.": "needs several hosts or a port that another program has",
    "net.unreachable": "needs a server that is there and can't be reached",
    "script.exited": "a look at the output",
    "script.gpu_only": "an option of the script",
    "script.index_range": "an advice on the data, or a model of transformers",
    "script.lfs_pointer": "needs git lfs and a repository with it",
    "script.lightning_size": "needs Lightning",
    "script.nan": "an advice on the training",
    "script.no_headers": "Python's headers would have to be taken from this machine",
    "script.no_name": "needs an older package beside each",
    "script.no_program": "a look at the hosts",
    "script.no_submodule": "needs an older package",
    "script.not_there": "lab/test_sync.py",
    "script.old_numpy": "an advice on the script's code",
    "script.raised": "an advice on the script's code",
    "script.reads_stdin": "an advice on the script's code",
    "script.starts_over": "stack/test_trainer_resumes.py",
    "script.syntax": "an advice on the script's code",
    "script.torn_checkpoint": "a look at the checkpoint",
    "script.web_page": "the file is to be downloaded by hand",
    "ssh.": "an advice on node0's known_hosts",
    "limit.": "as limit.files, or a look at the host",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    require_package("torch")
    base = tmp_path_factory.mktemp("home")
    config = os.environ.get("PIP_CONFIG_FILE", f"{Path.home()}/.config/pip/pip.conf")
    env = {"HOME": str(base), "PIP_CONFIG_FILE": config}
    words = ("--hosts", "localhost", "--stack", "torch", "--with", "numpy", "--with", "wandb")
    installed = ipexctl("install", *words, cwd=base, env=env, timeout=500)
    assert installed.rc == 0, installed.err
    yield env


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_what_a_cause_advises_ends_its_failure(home: dict[str, str], tmp_path: Path, case: Advised) -> None:
    script = tmp_path / case.file
    script.write_text(case.script)
    for name, limit in LIMITS.items():
        (tmp_path / f"{name}.sh").write_text(f"ulimit {limit}\n")
    (tmp_path / "prepare").write_text("#!/bin/sh\ntrue\n")
    script.chmod(0o755)
    call: Callable[..., CommandResult] = partial(ipexctl, cwd=tmp_path, env=home, timeout=150)
    program = ("--", case.file) if case.file.endswith(".sh") else (case.file,)
    words = [word.format(here=tmp_path) for word in case.words]
    failed = call("run", *TWO, *words, *program, *case.argv)
    cause = json.loads(call("why", "last", "--json").out)["cause"]
    fix = cause["fix"]
    assert failed.rc != 0
    assert (cause["id"], case.typed in fix) == (case.id, True), failed.err + fix
    if case.then:
        words = [word.format(here=tmp_path) for word in case.then]
    elif case.how == "options":
        words = shlex.split(case.typed)
    if case.how == "code":
        done = case.done or f"{case.typed}{HERE[-1] * (case.instead == HERE)}"
        script.write_text(case.script.replace(case.instead, done))
    elif case.how == "shell":
        subprocess.run(case.typed, shell=True, cwd=tmp_path, check=True)
    if case.how == "line":
        [line] = [line for line in re.findall(r"ipexctl run [^;\n]*", fix) if case.typed in line]
        again = call(*shlex.split(line)[1:])
    else:
        again = call("run", *TWO, *words, *program, *case.argv)
    assert again.rc == 0, again.err + again.out


def test_a_stopped_rank_goes_on_by_the_line_that_is_advised(home: dict[str, str], tmp_path: Path) -> None:
    code = "import os, signal\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGSTOP)\n"
    (tmp_path / "train.py").write_text(f"{code}print('goes on')\n")
    call: Callable[..., CommandResult] = partial(ipexctl, cwd=tmp_path, env=home, timeout=150)
    assert call("run", *TWO, "--hang-after", "5", "--detach", "train.py").rc == 0
    wait_until(lambda: '"hang.stopped"' in call("why", "last", "--json").out, 60)
    cause = json.loads(call("why", "last", "--json").out)["cause"]
    [line] = re.findall(r"ipexctl exec [^;\n]* -CONT \d+", cause["fix"])
    assert (cause["id"], call(*shlex.split(line)[1:]).rc) == ("hang.stopped", 0)
    assert call("attach", "last", "--plain").rc == 0


def test_each_cause_is_typed_or_says_why_not() -> None:
    ids = {known.id for section in ("errors", "recorded", "hang") for known in known_errors(section)}
    others = {id_ for id_ in ids if not id_.startswith((*NOT_HERE, *TYPED_ELSEWHERE))}
    assert others == {case.id for case in CASES if case.id in others}
