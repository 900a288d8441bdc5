"""Notes before a script resumes: hosts with different checkpoints, and versions that cannot load one."""

from __future__ import annotations

import ast
import shlex
import subprocess
from pathlib import Path

import pytest

from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.host import Host
from ipexctl.projects.named_checkpoints import NamedCheckpoint, find_named_checkpoints, of_call
from ipexctl.projects.script_file import ProjectLocation, ResumeFlag
from ipexctl.projects.trainer_use import find_resume_call
from ipexctl.run.start.apart_checkpoints import (
    HostCheckpoints,
    earlier_checkpoint,
    find_apart,
    find_differing,
    find_resume_flag,
    parse_checkpoints,
    resume_note,
    search_script,
)
from message_data import missing
from plan_helpers import spec_of
from record_helpers import run_record


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("--resume_from_checkpoint True", ResumeFlag("--resume_from_checkpoint")),
        ("--resume_from_checkpoint=out/checkpoint-60/", ResumeFlag("--resume_from_checkpoint", "out/checkpoint-60")),
        ("--resume-from-checkpoint latest --lr 1", ResumeFlag("--resume-from-checkpoint")),
        ("--lr 1 --resume --epochs 3", ResumeFlag("--resume")),
        ("--resume out/last.pt", ResumeFlag("--resume", "out/last.pt")),
        ("--auto-resume", ResumeFlag("--auto-resume")),
        ("--ckpt_path last", ResumeFlag("--ckpt_path")),
        ("--resume_from_checkpoint False", None),
        ("--resume=no", None),
        ("--no-resume", None),
        ("--resumes 1", None),
        ("resume", None),
        ("", None),
    ],
)
def test_flags_that_make_a_script_resume_are_found(words: str, flag: ResumeFlag | None) -> None:
    assert find_resume_flag(words.split()) == flag


def note(words: str, *hosts: str) -> str:
    """`hosts`: the directories of each; `=`: it has what the flag names."""
    flag = find_resume_flag(words.split())
    assert flag is not None
    found = {
        f"node{number}": HostCheckpoints(frozenset(each.replace("=", "").split()), "=" in each)
        for number, each in enumerate(hosts, 1)
    }
    apart = find_apart(flag, words.split(), found)
    return resume_note(apart) if apart is not None else ""


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("--resume", ("out/checkpoint-30 out/checkpoint-9", "out/checkpoint-30")),
        ("--resume", ("", "")),
        ("--resume --output_dir b", ("a/checkpoint-1 b/checkpoint-2", "b/checkpoint-2")),
        ("--resume out/checkpoint-30", ("= out/checkpoint-30 out/checkpoint-60", "= out/checkpoint-30")),
        ("--resume out/last.pt", ("out/checkpoint-30", "")),
    ],
)
def test_hosts_that_agree_get_no_note(words: str, hosts: tuple[str, ...]) -> None:
    assert note(words, *hosts) == ""


def test_search_finds_what_is_in_the_project_and_in_the_directories_of_the_arguments(tmp_path: Path) -> None:
    tree, other = tmp_path / "the tree", tmp_path / "other's"
    for path in ("out/checkpoint-30", "checkpoint-1", "deep/er/checkpoint-9", "named/er/step_2", "out/checkpoint-x"):
        (tree / path).mkdir(parents=True)
    (other / "epoch_3").mkdir(parents=True)
    (tree / "out/checkpoint-99").write_text("no directory")
    argv = ["--resume", "out/checkpoint-30", f"--output_dir={other}", "named/er", "-x", "--lr", "1e-3"]
    flag = find_resume_flag(argv)
    assert flag is not None

    def found(directory: Path) -> HostCheckpoints:
        script = search_script(flag, argv, str(directory))
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return parse_checkpoints(done.stdout)

    assert found(tree) == HostCheckpoints(
        frozenset({"out/checkpoint-30", "checkpoint-1", f"{other}/epoch_3", "named/er/step_2"}), has_path=True
    )
    assert found(tmp_path / "missing") == HostCheckpoints()


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("from transformers.trainer_utils import get_last_checkpoint\nlast = get_last_checkpoint('out')", True),
        ("import transformers.trainer_utils as utils\nlast = utils.get_last_checkpoint('out')", True),
        ("last = get_last_checkpoint('out')\ntorch.serialization.register_package(11, a, b)", False),
        ("from transformers import Trainer\nTrainer().train()", False),
    ],
)
def test_script_that_looks_for_its_last_checkpoint_itself_is_found(code: str, *, is_found: bool) -> None:
    assert (find_resume_call(ast.parse(code)) is not None) == is_found


def test_path_of_the_last_run_of_the_script_with_a_checkpoint_is_known(tmp_path: Path) -> None:
    def record(run: str, script: str = "train.py", checkpoint: str | None = None, project: str = "") -> RunRecord:
        asked = {} if checkpoint is None else {"checkpoint": checkpoint}
        return run_record(run, Host("a", "a"), "/h", "py", script, asked=asked, project=project or str(tmp_path))

    call = spec_of(project=ProjectLocation(tmp_path, ".", ("train.py",)))
    records = [record("r1", checkpoint="out/"), record("r2"), record("r3", "eval.py", "b"), record("r4", project="/p")]
    flag = earlier_checkpoint(call, records)
    assert flag is not None
    assert (flag.path, flag.place) == ("out", "out/")
    found = {"node1": HostCheckpoints(has_path=True), "node2": HostCheckpoints()}
    apart = find_apart(flag, [], found)
    assert apart is not None
    assert missing(resume_note(apart), "r1 out node1 node2 --checkpoint") == []
    assert find_apart(flag, [], dict.fromkeys(found, found["node1"])) is None
    assert earlier_checkpoint(call, records[1:]) is None


def test_search_quotes_what_the_arguments_have() -> None:
    flag = ResumeFlag("--resume", "a'b; touch x")
    script = search_script(flag, ["--resume", flag.path, "$(touch y)"], "/t'ree")
    assert shlex.quote(flag.path) in script
    assert shlex.quote("$(touch y)") in script


PARSED = (
    "p.add_argument('--resume', action='store_true'); p.add_argument('--out', default='ck')\nargs = p.parse_args()\n"
)


@pytest.mark.parametrize(
    ("code", "call", "named"),
    [
        ("if os.path.exists('last.pt'): torch.load('last.pt')", "", ("last.pt",)),
        ("path = Path('ck') / 'last.pt'\nif path.is_file(): load(path)", "", ("last.pt",)),
        ("old = sorted(glob(f'{out}/step-*.pth'))", "", ("/step-*.pth",)),
        ("add_argument(default='./out/m.ckpt')\nif exists(args.ckpt): load()", "", ("out/m.ckpt",)),
        ("old = glob('*.pt')", "", ()),
        ("if os.path.exists('data.csv'): read()", "", ()),
        ("torch.save(model, 'last.pt')", "", ()),
        ("if os.path.exists('data.csv'): read()\ntorch.save(model, 'last.pt')", "", ()),
        ("d = os.environ.get('CK', 'ck')\npath = join(d, 'last.pt')\nif exists(path): load(path)", "", ("last.pt",)),
        ("d = os.environ['CK']\npath = join(d, 'last.pt')\nif exists(path): load(path)", "CK=/b", ("/b/last.pt",)),
        ("d = os.environ['CK']\npath = join(d, 'last.pt')\nif exists(path): load(path)", "CK", ()),
        (PARSED + "if exists(join(args.out, 'last.pt')): go()", "--out other", ("other/last.pt",)),
        (PARSED + "if exists(join(args.out, 'last.pt')): go()", "--out=other", ("other/last.pt",)),
        (PARSED + "if exists(join(args.out, 'last.pt')): go()", "--lr 1", ("last.pt",)),
        (PARSED + "if args.resume and exists('last.pt'): go()", "--lr 1", ()),
        (PARSED + "if args.resume and exists('last.pt'): go()", "--resume", ("last.pt",)),
        (PARSED + "if args.resume:\n  if exists('last.pt'): go()", "", ()),
        (PARSED + "if not args.resume:\n  if exists('last.pt'): go()", "--resume", ()),
        ("if dist.get_rank() == 0 and exists('last.pt'): state = load('last.pt')", "", ()),
        ("if rank == 0:\n  if exists('last.pt'): state = load('last.pt')", "", ()),
        (PARSED + "if args.resume: pass\nelif exists('last.pt'): go()", "", ("last.pt",)),
    ],
)  # fmt: skip
def test_checkpoints_that_this_call_reads(code: str, call: str, named: tuple[str, ...]) -> None:
    argv = call.split() if call.startswith("-") else []
    name, equals, value = call.partition("=")
    variables = {} if argv or not name else {name: value if equals else None}
    found = find_named_checkpoints(ast.parse(code))
    assert all(isinstance(each, NamedCheckpoint) for each in found)
    assert of_call(found, argv, variables) == named


def test_a_checkpoint_of_an_earlier_run_on_some_hosts_only_is_named(tmp_path: Path) -> None:
    def found(host: str, *files: str) -> HostCheckpoints:
        for file in files:
            (tmp_path / host / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / host / file).write_text("x")
        script = search_script(None, [], str(tmp_path / host), ("/last.pt", "it's-*.pth"))
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return parse_checkpoints(done.stdout)

    node1, node2 = found("node1", "out/last.pt", "it's-3.pth", "other.pt"), found("node2", "it's-3.pth")
    assert node1.files == {"out/last.pt", "it's-3.pth"}
    apart = find_differing("train.py", {"node1": node1, "node2": node2})
    assert apart is not None
    assert missing(resume_note(apart), "train.py out/last.pt node1 node2 wait --checkpoint out/last.pt") == []
    assert find_differing("train.py", {"node1": node1, "node3": node1}) is None
