"""Scripts that are written for GPUs: which lines need one, and whether the script is refused, or the user told so."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, Final

import pytest

from case_table import case_table
from ipexctl.known_errors.gpu_code import GpuLine, find_gpu_lines, suggestion_for, suggestions
from ipexctl.projects.layout import read_layout
from ipexctl.projects.script_file import ProjectLocation, ScriptFile
from ipexctl.run.start.script_reading import project_script, read_script
from ipexctl.run.start.start_notes import check_gpu_code
from ipexctl.run.start.start_request import StartError
from plan_helpers import spec_of

DDP = """\
def setup():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    init_process_group(backend="nccl")
class Trainer:
    def __init__(self, model):
        self.model = model.to(self.gpu_id)
        self.model = DDP(self.model, device_ids=[self.gpu_id])
def main(epochs):
    setup()
    Trainer(Net().cuda())
if __name__ == "__main__":
    main(3)
"""
GUARDED = """\
device = "cuda" if torch.cuda.is_available() else "cpu"
backend = "nccl" if torch.cuda.is_available() else "gloo"
init_process_group(backend)
if torch.cuda.is_available():
    torch.cuda.set_device(local_rank)
    model.cuda()
else:
    model.to("cpu")
model.to(device)
DDP(model, device_ids=[local_rank] if device == "cuda" else None)
def place(tensor):
    if not torch.cuda.is_available():
        return tensor
    return tensor.cuda()
torch.cuda.empty_cache()
torch.cuda.manual_seed(1)
torch.amp.GradScaler("cuda")
with torch.autocast("cuda"):
    x.to(torch.float16)
dist.barrier(device_ids=[0])
"""


NANO = """\
backend = 'nccl' # 'nccl', 'gloo', etc.
device = 'cuda' # examples: 'cpu', 'cuda', 'cuda:0', 'cuda:1' etc.
exec(open('configurator.py').read())
ddp = int(os.environ.get('RANK', -1)) != -1
if ddp:
    init_process_group(backend=backend)
    device = f'cuda:{ddp_local_rank}'
    torch.cuda.set_device(device)
    x.cuda()
model.to(device)
DDP(model, device_ids=[ddp_local_rank])
"""


def test_what_is_left_out_of_a_suggestion_is_said() -> None:
    text = suggestions([GpuLine(number, f"{'x' * 90}.cuda()", True) for number in range(42)])
    assert (text.count("x…:"), text.endswith("; and 2 more")) == (40, True)


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        (DDP, {2: True, 3: True, 6: True, 7: True, 10: True}),
        (f"{DDP}# needs no cpu\n", {2: True, 3: True, 6: False, 7: False, 10: True}),
        (GUARDED, {}),
        ("if ddp:\n    torch.cuda.set_device(rank)\n", {2: False}),
        ("import sys\nif len(sys.argv) > 9:\n    sys.exit()\nmodel.cuda()\n", {4: False}),
        ("x = [t.cuda() for t in data]\nmodel.to(local_rank)\nmodel.to(device='cuda:0')", {1: False, 2: True, 3: True}),
        ("x = torch.zeros(2, device='cuda')\nmodel = DDP(\n    model,\n    device_ids=[rank],\n)", {1: True, 2: True}),
        ("start = torch.cuda.Event(enable_timing=True)\nmodel.to(f'cuda:{n}')", {1: True, 2: True}),
        ("mp.spawn(main, nprocs=2)\ndef main(rank):\n    torch.accelerator.set_device_index(rank)", {3: False}),
        ("assert torch.cuda.is_available(), 'no cpu'\nassert torch.cuda.device_count() > 0", {1: True, 2: True}),
        ("assert not torch.cuda.is_available()\nassert torch.cuda.device_count() > 1", {}),
        ("if not torch.cuda.is_available():\n    raise OSError\n", {1: True}),
        ("if torch.cuda.is_available():\n    raise OSError\n", {}),
        ("if not torch.cuda.is_available():\n    print('slow')\n    raise OSError\n", {}),
        ("try:\n    assert torch.cuda.is_available()\nexcept AssertionError:\n    pass\n", {}),
        ("torch.cuda.set_device = print\ntorch.cuda.set_device(0)", {2: False}),
        ("model.to(dtype)\nmodel.to(torch.device('cuda'))\ndist.init_process_group('gloo')", {2: True}),
        ("backend = 'nccl'\ndist.init_process_group(backend=backend)", {1: True}),
        ("backend = 'nccl'\nif no_gpu:\n    backend = 'gloo'\ninit_process_group(backend)", {1: False}),
        ("backend = args.backend\ndevice = 'cuda:0' if x else 'y'\ninit_process_group(backend)\nm.to(device)", {}),
        ("device = f'cuda:{n}'\nx = model.to(device)\ny = torch.load(p, map_location=device)", {1: True}),
        ("loc: str = 'cuda:0'\nif ddp:\n    torch.load(p, map_location=loc)\nunused = 'cuda'", {1: False}),
        ("def f():\n    d = torch.device('cuda', 1)\n    x = torch.zeros(2, device=d)\nf()", {2: True}),
        ("def main(cuda):\n    if cuda:\n        x.cuda()\nmain(cuda=fast)", {}),
        (NANO, dict.fromkeys((1, 2, 7, 8, 9, 11), False)),
        ("x" + ".a" * 900 + ".cuda()\n" + "(" * 80 + "1" + ")" * 80, {1: True}),
    ],
)
def test_lines_that_need_a_gpu_are_found(code: str, lines: dict[int, bool]) -> None:
    found = find_gpu_lines(ast.parse(code), code)
    assert {each.line: each.is_certain for each in found} == lines
    assert all(suggestion_for(each.text) for each in found)


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("torch.cuda.set_device(rank)", "leave this line out"),
        ("device = torch.device('cuda')", 'device = torch.device("cpu")'),
        ("device = f'cuda:{rank}'", 'device = "cpu"'),
        ("self.model = DDP(model, device_ids=[rank])", "DDP(model), without device_ids and output_device"),
        ("model = Net().to(rank)", '.to("cpu")'),
        ("dist.init_process_group('nccl')", 'init_process_group("gloo")'),
        ("model = Net().to(self.device)", 'device = torch.device("cpu") before it'),
        ('f.to(device="cuda")', '.to("cpu")'),
        ("model = DDP(", "DDP(model), without device_ids and output_device"),
        ("trainer.fit(model)", ""),
    ],
)
def test_each_line_has_what_to_type_there(line: str, suggestion: str) -> None:
    assert suggestion_for(line) == suggestion


@pytest.mark.parametrize(
    ("code", "options", "packages", "is_refused"),
    [
        (DDP, {}, {"torch": "2.13.0"}, True),
        (DDP, {"python": "/opt/py"}, {}, False),
        (DDP, {"backend": "none"}, {"torch": "2.13.0"}, False),
        (DDP, {}, {"torch": "2.13.0", "nvidia-nccl-cu12": "2.27"}, False),
        (GUARDED, {}, {}, False),
    ],
)
def test_a_script_is_refused_only_if_it_certainly_needs_a_gpu(
    code: str, options: dict[str, Any], packages: dict[str, str], is_refused: bool
) -> None:
    project = ProjectLocation(Path("/p"), ".", ("train.py",), read_script("train.py", code.encode())[0])
    spec = spec_of(project=project, **options)
    try:
        check_gpu_code(spec, packages)
    except StartError as error:
        fix = 'line 2, torch.cuda.set_device(int(os.environ["LOCAL_RANK"])): leave this line out; '
        assert (is_refused, error.failure.exit_code, error.failure.fix.startswith(fix)) == (True, 2, True)
    else:
        assert not is_refused


def fix_of(script: ScriptFile, typed: str) -> str:
    argv = ("t.py", *typed.split())
    try:
        check_gpu_code(spec_of("script", argv, project=ProjectLocation(Path(), ".", argv, script)), {})
    except StartError as error:
        return str(error.failure.fix).strip("`")
    return ""


@pytest.mark.parametrize(
    ("code", "typed", "fix"),
    [
        (
            "p.add_argument('--device', default='cuda:0')\nx.to(p.parse_args().device)",
            "",
            "ipexctl run t.py --device cpu",
        ),
        ("p.add_argument('--device', default='cuda')\nx.to(p.parse_args().device)", "--device=cpu", ""),
        (
            "p.add_argument('--device', default='cuda')\nx.to(p.parse_args().device)",
            "--device=cuda --n 2",
            "ipexctl run t.py --device=cpu --n 2",
        ),
        (
            "p.add_argument('--device', default='cuda')\nx.to(p.parse_args().device)",
            "--n 2 --device cuda:1 x",
            "ipexctl run t.py --n 2 --device cpu x",
        ),
        ("p.add_argument('--device', default='cuda')\nprint(p.parse_args())", "", "note: --device cpu"),
        ("p.add_argument('--device', default='cuda', help='or cpu')\nx.to(a.device)", "", ""),
        ("p.add_argument('--cuda', action='store_false')\nif a.cuda:\n    x.cuda()", "", "note: --cuda"),
        ("p.add_argument('-n', '--no_cuda', action='store_true')", "", "note: --no_cuda"),
        ("p.add_argument('--dist-backend', default='nccl')", "", "note: --dist-backend gloo"),
        ("p.add_argument('--device', **words)", "", ""),
    ],
)
def test_an_option_of_the_script_that_chooses_the_cpu_is_named(code: str, typed: str, fix: str) -> None:
    script, _ = read_script("t.py", code.encode())
    assert fix_of(script, typed) == ("" if fix.startswith("note: ") else fix)
    if fix.startswith("note: "):
        assert f"type {fix[6:]} behind the script" in suggestions(script.gpu_lines)


EXECUTED: Final = {
    "options.py": "for word in sys.argv[1:]:\n    name, value = word.split('=')\n    globals()[name[2:]] = value\n",
    "defaults.py": "globals()['size'] = 3\n",
    "reader.py": "size = int(sys.argv[1])\n",
    "careful.py": "globals()[sys.argv[1]] = 'cpu'\n",
}


@case_table
def test_a_name_that_an_executed_file_sets_to_what_is_typed_is_an_option(
    script: str, typed: str, fix: str, tmp_path: Path
) -> None:
    for name, text in {**EXECUTED, "t.py": script}.items():
        (tmp_path / name).write_text(text)
    assert fix_of(project_script("t.py", tmp_path / "t.py", read_layout(tmp_path, tmp_path)), typed) == fix


OWN_MODULES: Final = {
    "models/__init__.py": "from .net import Net, make\n",
    "models/net.py": """\
import torch
class Net(torch.nn.Module):
    def __init__(self, d, size=2):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(d, device="cuda"))
    def fit(self):
        self.place()
    def place(self):
        self.w.cuda()
class Plain:
    def __init__(self, gpu=False):
        if gpu:
            self.w = torch.zeros(2).cuda()
    def run(self, on_gpu=True):
        if not on_gpu:
            return
        torch.zeros(2).cuda()
    def at(self, device="cuda"):
        return torch.zeros(2).to(device)
def make():
    x = torch.zeros(2)
    return x.cuda()
""",
    "trainer.py": """\
from models import Net
class Trainer:
    def __init__(self):
        self.net = None
    def train(self):
        self.net = Net(3)
def start():
    trainer = Trainer()
    trainer.train()
""",
    "careful.py": "ready = torch.cuda.is_available()\ndef place(x):\n    x.cuda()\ndef put(x):\n    x.to(device_id)\n",
    "config.py": "device = 'cuda'\ndef place(x):\n    x.to(device)\n",
    "switch.py": """\
class T:
    def __init__(self, cuda=False):
        self.cuda = cuda
    def fit(self):
        self.place()
    def place(self):
        if self.cuda:
            x = x.cuda()
def main(cuda=False):
    if cuda:
        x.cuda()
""",
    "patch.py": "torch.Tensor.cuda = lambda self: self\n",
}


@case_table
def test_a_line_of_an_own_module_is_certain_if_the_script_certainly_runs_it(
    script: str, certain: str, tmp_path: Path
) -> None:
    for name, text in {**OWN_MODULES, "train.py": script}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = project_script("train.py", tmp_path / "train.py", read_layout(tmp_path, tmp_path)).gpu_lines
    places = [f"{Path(line.file).stem}:{line.line}" for line in found if line.is_certain]
    assert places == certain.split()
