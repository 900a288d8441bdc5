"""The messages about files that were found and do not count."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from golden_file import Case, golden_diff, refusal

from ipexctl.found_files import Distrust, check_found, check_own, describe
from ipexctl.node.common.walk import PathPart
from ipexctl.projects.root import find_root


def part(path: str, uid: int, mode: int) -> PathPart:
    return PathPart(path, SimpleNamespace(st_uid=uid, st_gid=4_000_000_002, st_mode=mode), frozenset({0}), str)


STATES: tuple[Distrust, ...] = (
    Distrust(part("FILE", 4_000_000_001, 0o100644), "owner", "DIR"),
    Distrust(part("FILE", 0, 0o100664), "group", "DIR"),
    Distrust(part("FILE", 0, 0o100664), "acl", "DIR"),
    Distrust(part("DIR", 4_000_000_001, 0o42777), "others", "DIR"),
)


def test_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    cases = [Case(f"does not count: {state.objection}", describe(state)) for state in STATES]
    project = tmp_path / "project"
    (project / "mine").mkdir(parents=True)
    for name in ("hostfile", "ipexctl.toml"):
        (project / name).touch()
    project.chmod(0o777)

    def fix(name: str, call: object, *arguments: object, **options: str) -> Case:
        found = refusal(name, lambda: call(*arguments, **options), at=tmp_path)  # type: ignore[operator]
        return found._replace(message="…")  # it has the account of this test

    cases += [
        fix("found hostfile", check_found, project / "hostfile", naming="-H hostfile"),
        fix("found pattern file", check_found, project / "hostfile", trust=f"{project}/*"),
        fix("mark of a project above", find_root, None, None, project / "mine"),
        fix("own file", check_own, project / "hostfile"),
    ]
    assert not (diff := golden_diff("found", cases)), diff
