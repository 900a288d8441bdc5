"""Listing and removing environments: a removed one is gone completely, or untouched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from env_helpers import Home
from message_data import missing


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home.below(tmp_path)
    home.build()
    return home


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("mkdir $SITE/mine-1.0.dist-info", ""),
        ("mv $SITE/torch-2.8.0.dist-info $SITE/torch-2.9.0.dist-info", "torch 2.9.0 2.8.0"),
        pytest.param(": >$SITE/numpy.py", "numpy: numpy.py", marks=pytest.mark.core),
        ("ln -sf /usr/bin/python3.99 $ENV/bin/python", "/usr/bin/python3.99"),
    ],
)
def test_changes_are_reported_but_for_packages_that_the_user_added(home: Home, command: str, problem: str) -> None:
    subprocess.run(command, shell=True, check=True, env={**os.environ, "SITE": str(home.site), "ENV": str(home.env)})
    problems = home.envs("check", name="default")["problems"]
    assert [missing(wrong, problem) for wrong in problems[:1]] == ([[]] if problem else [])


@pytest.mark.parametrize(
    ("name", "digest", "is_there", "is_usable"),
    [("default", None, True, True), ("default", "0" * 64, True, False), ("other", None, False, False)],
)
def test_check_finds_the_environment_of_a_name_and_a_lock(
    home: Home, name: str, digest: str | None, is_there: bool, is_usable: bool
) -> None:
    checked = home.envs("check", name=name, digest=digest or home.lock.digest)
    assert (checked["exists"], bool(checked["record"])) == (is_there, is_usable)


@pytest.mark.parametrize("key", ["variables", "prepended", "packages", "backend", "build", "digest"])
def test_incomplete_record_is_reported_and_rebuilt(home: Home, key: str) -> None:
    record = home.env / "env.json"
    said = json.loads(record.read_text())
    build = said.get("build")
    record.write_text(json.dumps({other: value for other, value in said.items() if other != key}))
    checked = home.envs("check", name="default")
    assert [missing(wrong, str(record)) for wrong in checked["problems"]] == [[]]
    home.build(replace=checked["build"])
    assert home.envs("check", name="default")["record"]
    assert json.loads(record.read_text())["build"] != build


def test_the_list_has_names_sizes_and_leftovers(home: Home) -> None:
    (home.path / "envs" / ".build-000000000000").mkdir()
    (home.path / "envs" / "half-00000000").mkdir()
    (home.path / "envs" / "half-00000000" / "lock.json").touch()
    (home.path / "envs" / "of a user" / "bin").mkdir(parents=True)
    listed = home.envs("list")
    whole = next(env for env in listed["envs"] if env["name"] == home.name)
    half = next(env for env in listed["envs"] if env["name"] == "half-00000000")
    assert len(listed["envs"]) == 2
    assert whole["names"] == ["default"]
    assert whole["complete"]
    assert whole["bytes"] > 10_000
    assert not half["complete"]
    assert listed["leftovers"] == 1
    assert listed["wheel_bytes"] > 10_000


def test_sizes_are_unknown_where_counting_takes_too_long(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    from ipexctl.node.env import environments

    monkeypatch.setattr(environments, "ENV_SIZES", -1.0)
    listed = environments.list_within_time({"home": str(home.path)})
    assert [env.bytes for env in listed.envs] == [None]
    assert listed.envs[0].complete


def test_empty_home_is_listed(tmp_path: Path) -> None:
    assert Home(tmp_path / "none").envs("list")["envs"] == []


def test_remove_deletes_the_names_of_an_environment(home: Home) -> None:
    done = home.envs("remove", names=["default"])
    assert done["removed"] == sorted(["default", home.name])
    assert list((home.path / "envs").iterdir()) == []


def test_unknown_names_are_reported_and_others_are_removed(home: Home) -> None:
    done = home.envs("remove", names=["nothing", "../x", home.name])
    assert set(done["failed"]) == {"nothing", "../x"}
    assert not home.env.exists()


@pytest.mark.parametrize("via", ["default", None])
def test_environment_in_use_is_not_removed(home: Home, via: str | None) -> None:
    python = home.path / "envs" / (via or home.name) / "bin" / "python"
    child = subprocess.Popen(
        [str(python), "-c", "import time; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        done = home.envs("remove", names=["default"])
        assert str(child.pid) in done["failed"]["default"]
        assert home.envs("check", name="default")["record"]
    finally:
        child.kill()
        child.communicate()


def test_prune_removes_leftovers_of_killed_builds_and_counts_bytes(home: Home) -> None:
    left = [home.path / "tmp" / "build-000000000000", home.path / "envs" / ".build-000000000000"]
    for place in left:
        place.mkdir()
        (place / "file").write_bytes(b"x" * 100_000)
    owner = home.path / "tmp" / "owner-000000000000"
    owner.symlink_to("elsewhere:1:1:000000000000")
    home.envs("prune")
    assert all(place.exists() for place in left)
    os.utime(owner, (1e9, 1e9), follow_symlinks=False)
    assert home.envs("prune")["bytes"] >= 200_000
    assert not any(place.exists() for place in left)
    assert home.envs("prune")["bytes"] == 0


def test_prune_keeps_named_environments(home: Home) -> None:
    (home.path / "envs" / ".build-000000000000").mkdir()
    home.envs("prune")
    assert sorted(os.listdir(home.path / "envs")) == sorted(["default", home.name])
    assert not (home.path / "wheels").exists()
    (home.path / "envs" / "default").unlink()
    assert home.envs("prune")["removed"] == [home.name]


def test_link_moves_a_name_to_another_environment(home: Home) -> None:
    home.envs("link", name=home.name, link="best")
    assert os.readlink(home.path / "envs" / "best") == home.name
    assert home.envs("link", name=home.name, link="../x")["event"] == "failed"


def test_unlink_removes_only_names_of_that_environment(home: Home) -> None:
    home.envs("unlink", name="ipex-2.8-12345678", link="default")
    assert os.readlink(home.path / "envs" / "default") == home.name
    for name in ("default", "none"):
        assert home.envs("unlink", name=home.name, link=name)["event"] == "done"
    assert sorted(os.listdir(home.path / "envs")) == [home.name]


@pytest.mark.parametrize("is_live", [True, False])
def test_prune_keeps_wheels_of_a_running_download(home: Home, is_live: bool) -> None:
    wheels = home.path / "wheels"
    complete = wheels / ("0" * 64) / "torch.whl"
    complete.parent.mkdir(parents=True)
    complete.write_bytes(b"x" * 10_000)
    code = (
        "import os, sys; from ipexctl.node.common.processes import partial_name; print(partial_name('ab'), flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as download:
        assert download.stdout is not None
        partial = wheels / download.stdout.readline().strip()
        partial.write_bytes(b"y" * 10_000)
        if not is_live:
            download.communicate("\n", timeout=20)
        freed = home.envs("prune")["bytes"]
        if is_live:
            download.communicate("\n", timeout=20)
    assert (partial.exists(), complete.exists(), freed == 0) == (is_live, is_live, is_live)


def test_an_environment_is_private_with_any_umask(tmp_path: Path) -> None:
    umask = os.umask(0o002)
    try:
        home = Home.below(tmp_path)
        home.build()
    finally:
        os.umask(umask)
    paths = [home.env, *(path for path in home.env.rglob("*") if not path.is_symlink())]
    assert (home.env / "bin").is_dir()
    assert {path.stat().st_mode & 0o077 for path in paths if path.is_dir()} == {0}
    assert not [path for path in paths if path.stat().st_mode & 0o022]


def test_names_that_lead_out_of_the_home_are_refused(home: Home, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("")
    (home.path / "envs" / "led").symlink_to("../../outside")
    for name in ("..", "../../outside", str(outside), "", ".", "default\n", "a/b", "led"):
        assert name in home.envs("remove", names=[name])["failed"]
        for action in ("check", "link"):
            assert home.envs(action, name=name, link="x")["event"] == "failed"
        assert home.envs("unlink", name="default", link=name)["event"] == ("done" if name == "led" else "failed")
    assert (outside / "kept").exists()
    assert home.env.is_dir()
