"""The rules for homes: the same directories, judged by the agent and by the functions of sh."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ipexctl.errors import UserError
from ipexctl.node.common import home as homes
from ipexctl.node.common.files import make_private_directory
from ipexctl.node.common.home import MARK, HomeRefused, make_home, rundir_of
from ipexctl.node.common.home_entries import foreign_entries, own_entries
from ipexctl.remote.home_script import home_functions, home_refusal
from message_data import missing

RUN = "train-1120-132512-9f3a"
Decide = Callable[[Path], str]
"""Opens a home; returns "ok" or the kind of the refusal."""


def by_agent(home: Path) -> str:
    try:
        homes.make_home(str(home))
    except HomeRefused as refused:
        return refused.kind
    return "ok"


def by_sh(home: Path, shell: str = "sh") -> str:
    script = home_functions() + 'use_home "$1" || refuse_home\n'
    argv = [*shell.split(), "-c", script, "sh", str(home)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode == 0:
        return "ok"
    try:
        assert home_refusal(done.stderr.splitlines()[-1], str(home)) is not None, done.stderr
    except UserError as wrong:
        assert missing(wrong.message, str(home)) == []
    return done.stderr.splitlines()[-1].split()[1]


WAYS = {"agent": by_agent, "sh": by_sh}
if shutil.which("busybox"):
    WAYS["busybox"] = lambda home: by_sh(home, "busybox sh")


@pytest.fixture(params=WAYS)
def decide(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Decide:
    account = tmp_path / "account"
    account.mkdir()
    monkeypatch.setenv("HOME", str(account))
    way: Decide = WAYS[request.param]
    return way


def fill(home: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        else:
            path.write_text(text)
    return home


def snapshot(home: Path) -> set[tuple[str, int, int]]:
    return {(str(path), path.lstat().st_mtime_ns, path.lstat().st_mode) for path in (home, *home.rglob("*"))}


FOREIGN = {
    "environment of 0.1": {"envs/torch-2.13-23936c50/env.json": '{\n  "digest": "23",\n  "schema": "ipexctl.env/1"\n}'},
    "record of a run": {"runs/old/status.json": '{"schema": "ipexctl.status/1", "id": "old"}'},
    "compact record": {"runs/old/status.json": '{"schema":"ipexctl.status/1"}'},
    "job": {"runs/old/job.json": '{"rundir": "/home/me/runs/old"}'},
    "job by its id": {f"runs/{RUN}/job.json": "{}"},
    "run on another node than node0": {f"runs/{RUN}/agent.zip": "PK"},
    "results that uninstall has left": {f"runs/{RUN}/ranks/0000.out": "loss"},
    "only sync": {
        "code/project-d13fd23a/.ipexctl/state.json": '{"digest":"1","rows":[]}',
        "code/project-d13fd23a/a": "",
    },
    "only the agent": {f"agent/{'0' * 16}/ipexctl/node/__main__.py": "from ipexctl.node import main"},
    "only wheels": {f"wheels/{'0' * 64}/torch-2.8-py3-none-any.whl": "PK"},
    "only tune": {"tune.before": "sysctl:vm.swappiness\t60\n"},
    **{name: {f"{name}/file": "mine"} for name in ("agent", "checkpoints", "code", "envs", "runs", "tmp", "wheels")},
    "names in capitals of ours": {"runs/exp1/status.json": '{"state": "ok"}', "runs/exp1/job.json": "{}"},
    "an environment for games": {"envs/cartpole/env.json": '{"id": "CartPole-v1"}'},
    "policies": {"agent/policy/w.pt": "w", "agent/0123456789abcdef/w.pt": "w"},
    "a repository": {"code/.git/HEAD": "ref", "code/model-12345678/train.py": ""},
    "an ssh config": {"ssh/config": "Host *\n", "ssh/id_ed25519.pub": "ssh-ed25519 AAAA me@laptop\n"},
    "one file": {"train.py": ""},
    "an empty directory": {"runs/": ""},
    "a file with our text at the wrong place": {"env.json": '{"schema": "ipexctl.env/1"}'},
}


IGNORED = {"lost+found/": "", ".snapshot/": "", ".nfs0001": "x"}


@pytest.mark.parametrize("files", [None, {}, IGNORED], ids=["missing", "empty", "ignored"])
def test_empty_directory_becomes_a_home(tmp_path: Path, decide: Decide, files: dict[str, str] | None) -> None:
    home = tmp_path / "above/home"
    if files is not None:
        home.mkdir(parents=True)
        fill(home, files)
    assert decide(home) == "ok"
    assert stat.S_IMODE((home / MARK).stat().st_mode) == 0o600
    assert home.stat().st_mode & 0o022 == 0
    before = snapshot(home)
    assert decide(home) == "ok"
    assert snapshot(home) == before


@pytest.mark.parametrize("name", FOREIGN)
def test_directory_of_a_user_is_refused_and_unchanged(tmp_path: Path, decide: Decide, name: str) -> None:
    home = fill(tmp_path / "home", FOREIGN[name])
    home.chmod(0o775)
    before = snapshot(home)
    assert decide(home) == "other_files"
    assert snapshot(home) == before
    refused = home_refusal("ipexctl-home other_files", str(home))
    assert refused is not None
    assert refused.fix.endswith(f"--home {home}/ipexctl")


def test_home_directory_of_the_account_is_refused_by_any_path(tmp_path: Path, decide: Decide) -> None:
    account = tmp_path / "account"
    (tmp_path / "link").symlink_to(account)
    for path in (str(account), f"{account}//", f"{account}/.", f"{tmp_path}/link", f"{tmp_path}/link/"):
        assert decide(Path(path)) == "account_home"
    assert not (account / MARK).exists()
    assert decide(Path("/")) in ("root", "account_home", "other_account")


def test_default_home_needs_a_mark_as_any_other(tmp_path: Path, decide: Decide) -> None:
    home = fill(tmp_path / "account/.ipexctl", {"code/project-d13fd23a/result.txt": "of a user"})
    assert decide(home) == "other_files"
    shutil.rmtree(home)
    assert decide(home) == "ok"
    fill(home, {"code/project-d13fd23a/result.txt": "left by uninstall"})
    assert decide(home) == "ok"


OTHER = 61002


def at_once(path: Path, *, owner: int = 0, mode: int = 0o755) -> Path:
    path.mkdir()
    os.chown(path, owner, owner)
    path.chmod(mode)
    return path


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another account")
@pytest.mark.parametrize(
    ("owner", "mode", "decision"),
    [
        (0, 0o1777, "ok"),
        (OTHER, 0o755, "above"),
        (0, 0o777, "above"),
    ],
)
def test_no_other_account_can_exchange_a_home(
    tmp_path: Path, decide: Decide, owner: int, mode: int, decision: str
) -> None:
    above = at_once(tmp_path / "above", owner=owner, mode=mode)
    assert decide(above / "h") == decision
    assert decide(above / "a/b/h") == decision
    assert (above / "h").exists() == (decision == "ok")
    marked = fill(above / "marked", {MARK: ""})
    assert decide(marked) == decision, "also a home that exists"
    (tmp_path / "link").symlink_to(above)
    assert decide(tmp_path / "link/x") == decision, "through a link of this account"


def test_home_that_others_can_write_to_is_closed_also_with_files_of_a_user(tmp_path: Path, decide: Decide) -> None:
    for mode in (0o770, 0o702, 0o777):
        home = fill(tmp_path / f"{mode:o}", {MARK: "", "notes.txt": ""})
        home.chmod(mode)
        assert decide(home) == "ok"
        assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a filesystem")
def test_home_that_cannot_be_closed_is_refused(tmp_path: Path, decide: Decide) -> None:
    image, point = tmp_path / "image", tmp_path / "vfat"
    point.mkdir()
    made = (
        shutil.which("mkfs.vfat")
        and not subprocess.run(["mkfs.vfat", "-C", image, "2048"], capture_output=True).returncode
    )
    if not made or subprocess.run(["mount", "-o", "loop,umask=000", image, point], capture_output=True).returncode:
        pytest.skip("no filesystem without modes can be mounted here")
    try:
        assert decide(point) == "open"
        assert list(point.iterdir()) == []
    finally:
        subprocess.run(["umount", point], check=True)


def test_home_whose_mode_does_not_change_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fill(tmp_path / "home", {MARK: ""})
    home.chmod(0o777)
    monkeypatch.setattr(os, "chmod", lambda *_: None)
    assert by_agent(home) == "open"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another account")
def test_mark_of_another_account_does_not_count(tmp_path: Path, decide: Decide) -> None:
    home = fill(tmp_path / "home", {MARK: "", "train.py": ""})
    os.chown(home / MARK, 12345, 12345)
    assert decide(home) == "no_mark"
    os.chown(home, 12345, 12345)
    assert decide(home) == "other_account"


def test_link_as_a_mark_does_not_count(tmp_path: Path, decide: Decide) -> None:
    home = fill(tmp_path / "home", {"train.py": ""})
    (home / MARK).symlink_to(home / "train.py")
    assert decide(home) == "no_mark"


def test_calls_that_begin_at_once_make_one_mark_and_none_is_refused(tmp_path: Path) -> None:
    code = (
        "import os, sys; from ipexctl.node.common.home import make_home\n"
        "make_home(sys.argv[1]); os.makedirs(f'{sys.argv[1]}/agent/{os.getpid()}')"
    )
    script = home_functions() + 'use_home "$1" || refuse_home\nmkdir "$1/code$$"\n'
    for attempt in range(3):
        home = tmp_path / f"home{attempt}"
        ways = [[sys.executable, "-c", code, home], ["sh", "-c", script, "sh", home]] * 3
        with ThreadPoolExecutor(len(ways)) as pool:
            done = list(pool.map(lambda argv: subprocess.run(argv, capture_output=True, text=True, timeout=60), ways))
        assert [(run.returncode, run.stderr) for run in done] == [(0, "")] * len(ways)
        assert [path.name for path in home.iterdir() if path.name.startswith(".")] == [MARK]


def test_call_is_not_refused_while_another_makes_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing of the directory may lack the mark, and already have what was made after it."""
    home = fill(tmp_path / "home", {"agent/": ""})
    monkeypatch.setattr(time, "sleep", lambda _: fill(home, {MARK: ""}))
    assert by_agent(home) == "ok"


def test_foreign_entries_are_those_that_ipexctl_does_not_make(tmp_path: Path) -> None:
    token, sha256 = "0123456789ab", "0" * 64
    own = fill(
        tmp_path / "home",
        {
            f"agent/{'0' * 16}/ipexctl/": "",
            f"agent/.new-{token}/": "",
            f"agent/{'0' * 16}.cpython-311.zip": "",
            f"checkpoints/{'0' * 16}/files.json": "{}",
            f"checkpoints/{'0' * 16}/files.json.damaged": "{",
            f"checkpoints/{'1' * 16}/in/": "",
            f"checkpoints/{'2' * 16}/aside/{'0' * 32}/out/last.pt": "weights",
            "code/project-d13fd23a/.ipexctl/": "",
            "code/project-d13fd23a.gen2/.ipexctl/": "",
            "envs/torch-2.13-23936c50/env.json": '{"digest": "1"}',
            "envs/damaged-23936c50/lock.json": "{}",
            f"envs/.build-{token}/": "",
            f"envs/.build-{token}+old/": "",
            f"runs/{RUN}/hooks/": "",
            "runs/older/status.json": '{"schema": "ipexctl.status/1"}',
            "runs/.pruned.jsonl": "",
            "runs/.ages.json": "{}",
            "runs/.gone-older/": "",
            f"tmp/build-{token}/": "",
            f"tmp/lock.boot-1.77.{'0' * 8}.part/": "",
            f"tmp/sync/{sha256}/parcel": "",
            f"wheels/{sha256}/a.whl": "",
            f"wheels/{'0' * 16}.boot-1.77.{'0' * 8}.part": "",
        },
    )
    (own / "envs/default").symlink_to("torch-2.13-23936c50")
    (own / "tmp/default.lock").symlink_to("boot:1:1:a")
    (own / "code/.store").symlink_to("0" * 32)
    directories = ("agent", "checkpoints", "code", "envs", "runs", "tmp", "wheels")
    assert list(foreign_entries(str(own))) == []
    assert sum(len(own_entries(str(own), name)) for name in directories) == sum(
        len(list((own / name).iterdir())) for name in directories
    )
    foreign = {
        "agent/policy/w.pt": "agent/policy",
        "checkpoints/model": "checkpoints/model",
        f"checkpoints/{'2' * 16}/model.pt": f"checkpoints/{'2' * 16}",
        "code/.git/HEAD": "code/.git",
        "code/mine-12345678/a": "code/mine-12345678",
        "envs/mine/pyvenv.cfg": "envs/mine",
        "notes.txt": "notes.txt",
        "runs/r1/status.json": "runs/r1",
        "tmp/build-mine/a": "tmp/build-mine",
        "tmp/lockfiles/a": "tmp/lockfiles",
        f"wheels/{'1' * 64}/below/model": f"wheels/{'1' * 64}",
        "wheels/model.part": "wheels/model.part",
    }
    fill(own, dict.fromkeys(foreign, "{}"))
    (own / "envs/conda").symlink_to("/opt/conda")
    listed = {os.path.relpath(path, own) for path in foreign_entries(str(own))}
    assert listed == {*foreign.values(), "envs/conda"}


@pytest.fixture
def team_space(tmp_path: Path) -> Path:
    """A directory whose default access control list opens what is made in it."""
    subprocess.run(["setfacl", "-d", "-m", "u:12345:rwx", tmp_path], check=True)
    (tmp_path / "open").mkdir(mode=0o777)
    assert (tmp_path / "open").stat().st_mode & 0o070 == 0o070, "the list replaces the umask"
    return tmp_path


def modes_below(home: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in (home, *home.rglob("*")) if path.is_dir()}


@pytest.mark.needs("setfacl")
def test_a_default_list_above_a_home_opens_no_directory_that_is_made_by_the_agent(team_space: Path) -> None:
    home = team_space / "above/h"
    make_home(str(home))
    make_private_directory(home / "runs")
    os.mkdir(home / "runs/by-a-rank")
    umask = os.umask(0o022)
    os.umask(umask)
    assert modes_below(home) == {"h": 0o700, "runs": 0o700, "by-a-rank": 0o777 & ~umask}
    assert home.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.needs("setfacl")
def test_a_default_list_above_a_home_opens_no_directory_that_is_made_by_a_shell(team_space: Path) -> None:
    home = team_space / "above/h"
    script = home_functions() + 'use_home "$1" runs || refuse_home\nmake_private "$1/runs/r1/hooks"\n'
    subprocess.run(["sh", "-c", f"umask 022\n{script}mkdir $1/runs/r1/of-script", "sh", home], check=True)
    assert modes_below(home) == {"h": 0o700, "runs": 0o700, "r1": 0o700, "hooks": 0o700, "of-script": 0o755}


@pytest.mark.needs("setfacl")
def test_a_list_that_is_set_on_a_home_later_refuses_no_call(team_space: Path) -> None:
    home = team_space / "h"
    make_home(str(home))
    make_private_directory(home / "runs/r1")
    for call in (lambda: rundir_of({"home": str(home), "id": "r1"}), lambda: use_by_shell(home)):
        subprocess.run(["setfacl", "-R", "-m", "u:12345:rwx", home], check=True)
        call()
        assert home.stat().st_mode & 0o777 == (home / "runs").stat().st_mode & 0o777 == 0o700
    subprocess.run(["setfacl", "-m", "u:12345:rwx", team_space], check=True)
    with pytest.raises(HomeRefused):  # not ours to close
        rundir_of({"home": str(home), "id": "r1"})


def use_by_shell(home: Path) -> None:
    script = home_functions() + 'use_home "$1" runs || refuse_home\n'
    subprocess.run(["sh", "-c", script, "sh", home], check=True)
