"""Files that a script names or a rank misses, and that an ignore file keeps from the hosts."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.hosts.host import Host
from ipexctl.option_declaration import NO_OPTIONS, CallOptions, TypedCall
from ipexctl.projects.root import owner_here, tree_name
from ipexctl.projects.script_file import ProjectLocation
from ipexctl.run.start.script_reading import read_script
from ipexctl.run.unsent import line_that_sends, unsent_note
from ipexctl.sync.project import read_project
from plan_helpers import spec_of
from record_helpers import run_record

CODE = b"""\
data = os.path.join("data", dataset)
for name in ("train.bin", "val.bin"): np.memmap(os.path.join(data, name))
meta = os.path.join(data, "meta.pkl")
json.load(open("conf.json")), torch.save(state, "last.pt"), print("no file. Really")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "nano"
    for name in ("train.py", "data/char/train.bin", "data/char/meta.pkl", "conf.json", "big/conf.json", "big/val.bin"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    (root / "last.pt").write_text("x")
    (root / ".gitignore").write_text("*.bin\n*.pkl\n*.pt\nbig/\n")
    return root


def test_ignored_files_that_the_script_names_are_a_note_with_the_whole_call(project: Path) -> None:
    script = read_script("train.py", CODE)[0]
    spec = spec_of(
        *("script", ("train.py", "--lr", "a b")),
        project=ProjectLocation(project, ".", ("train.py",), script),
        options=CallOptions(call=TypedCall(("--ppn", "2"), ("train.py", "--lr", "a b"))),
    )
    (note,) = unsent_note(spec, read_project(project))
    said, _, line = note.rpartition(": ")
    assert "data/char/meta.pkl, data/char/train.bin and big/val.bin" in said
    includes = ["--include", "data/char/*", "--include", "big/*"]
    assert shlex.split(line) == ["ipexctl", "run", *includes, "--ppn", "2", "train.py", "--lr", "a b"]
    assert unsent_note(spec, read_project(project, includes=includes[1::2])) == ()
    other = replace(spec.project, script=replace(script, files=("val.bin",)))
    (note,) = unsent_note(replace(spec, project=other, options=NO_OPTIONS), read_project(project))
    assert note.endswith(": --include 'big/*'")


@pytest.mark.parametrize(
    ("path", "pattern", "keeper"),
    [
        ("data/char/train.bin", "data/char/*", "the project has it, but an ignore file keeps it from the hosts"),
        ("sub/./../big/conf.json", "big/*", "the project has it, but an ignore file keeps it from the hosts"),
        ("./big", "big/**", "the project has it, but an ignore file keeps it from the hosts"),
        ("data", "", ""),
        ("last.pt", "/*.pt", "the project has it, but an ignore file keeps it from the hosts"),
        (".env", "/.env", "the project has it, but credentials are not sent"),
        ("keys/.ssh/config.txt", "/keys/.ssh/config.txt", "the project has it, but credentials are not sent"),
        ("absent.pem", "/absent.pem", "credentials are not sent"),
        ("conf.json", "", ""),
        ("data/char/absent.bin", "", ""),
        ("/etc/passwd", "", ""),
        ("../../outside.bin", "", ""),
    ],
)
def test_a_missed_file_of_the_project_has_the_line_that_sends_it(
    project: Path, path: str, pattern: str, keeper: str
) -> None:
    (project.parent / "outside.bin").write_text("x")
    (project / "keys/.ssh").mkdir(parents=True)
    for name in (".env", "keys/.ssh/config.txt"):
        (project / name).write_text("x")
    tree = f"/h/code/{tree_name(project, owner_here())}.gen2"
    typed = TypedCall(directory=str(project))
    record = run_record("train-1", Host("n1", "n1"), "/h", "py", cwd=tree, project=str(project), typed=typed)
    line = f"ipexctl run --resume train-1 --include {shlex.quote(pattern)}"
    first = "put it into the project, then: " if "absent" in path else ""
    said = (keeper, f"{first}{line}") if pattern else ("", "")
    assert line_that_sends(record, path) == said
    assert line_that_sends(record, f"{tree}/{path}") == said


def test_an_ignored_directory_that_the_script_names_is_a_note_with_the_line_that_sends_it(project: Path) -> None:
    (project / "out").mkdir()
    (project / "out/last.csv").write_text("x")
    (project / ".gitignore").write_text("*.bin\n*.pkl\nbig/\n/out/\n")
    code = b'os.listdir("./big"), open("data/char/"), {"big": 0}, os.makedirs("./out"), Path("text/plain"), "./absent"'
    script = read_script("train.py", code)[0]
    spec = spec_of("script", ("train.py",), project=ProjectLocation(project, ".", ("train.py",), script))
    (note,) = unsent_note(spec, read_project(project))
    assert note.startswith("train.py names big/ and data/char/, but an ignore file keeps them from the hosts")
    assert note.endswith("--include 'big/**' --include 'data/char/**'")
    sent = read_project(project, includes=("big/**", "data/char/**"))
    assert unsent_note(spec, sent) == ()
    assert {"big/val.bin", "data/char/train.bin"} <= {entry.path for entry in sent.manifest.entries}
