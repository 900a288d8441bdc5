"""A node looks for a hub: repositories in its caches, and whether the hub answers."""

from __future__ import annotations

import os
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from env_helpers import said, start
from tls_helpers import serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = {"word": "hf:org/tiny", "repo_id": "org/tiny", "folder": "models--org--tiny", "revision": "main"}
DATA = {"word": "hf-dataset:org/d", "repo_id": "org/d", "folder": "datasets--org--d", "revision": "v1"}


def fill(cache: Path, folder: str, ref: str = "main") -> None:
    (cache / folder / "snapshots" / COMMIT).mkdir(parents=True)
    (cache / folder / "refs").mkdir()
    (cache / folder / "refs" / ref).write_text(COMMIT)


class Hub(BaseHTTPRequestHandler):
    status = 200

    def do_HEAD(self) -> None:
        self.send_response(self.status)
        if self.status == 302:
            self.send_header("Location", "http://192.0.2.1/")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def look(tmp_path: Path, *, env: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    request = {"home": "~/.ipexctl", "setup": "", "variables": {}, "repos": [REPO, DATA], "work": "."}
    account = {**os.environ, "HF_HOME": "", "HF_HUB_OFFLINE": "", **(env or {})}
    return said(start("network.hub", "look", {**request, "tries": False, **changes}, env=account))


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The account's home is that of passwd, so a cache and a home are named by their paths."""
    home = tmp_path / "home"
    fill(home / "hub" / "hub", "models--org--tiny")
    return home


def test_repositories_are_found_in_both_caches(tmp_path: Path, own_home: Path) -> None:
    cache = tmp_path / "own"
    fill(cache / "hub", "datasets--org--d", "v1")
    fill(cache / "hub", "models--org--other")
    (cache / "hub" / "models--a--unfinished").mkdir()
    variables = {"HF_HOME": str(cache)}
    found = look(tmp_path, home=str(own_home), variables=variables)
    assert (found["in_home"], found["in_own"]) == (["hf:org/tiny"], ["hf-dataset:org/d"])
    assert (found["has_own_cache"], found["others"], found["problem"]) == (True, 2, "")
    wrong = look(
        tmp_path, home=str(own_home), variables={"XDG_CACHE_HOME": str(cache)}, repos=[{**REPO, "revision": "v2"}]
    )
    assert (wrong["in_home"], wrong["has_own_cache"]) == ([], False)


@pytest.mark.core
def test_datasets_that_were_prepared_and_directories_count(tmp_path: Path, own_home: Path) -> None:
    mixed = {**DATA, "word": "hf-dataset:org/MyData2", "repo_id": "org/MyData2"}
    for home, name in ((tmp_path / "own", "org___d"), (own_home / "hub", "org___my_data2")):
        (home / "datasets" / name / "default" / "0.0.0" / COMMIT).mkdir(parents=True)
    (tmp_path / "own" / "datasets" / "org___my_data2").mkdir()  # of a preparation that failed
    (own_home / "code" / "project-1" / "sub" / "org" / "tiny").mkdir(parents=True)
    own = {"HF_HOME": str(tmp_path / "own"), "HF_HUB_CACHE": str(tmp_path / "elsewhere")}
    found = look(tmp_path, home=str(own_home), variables=own, work="sub", repos=[REPO, DATA, mixed])
    assert (found["in_own"], found["directories"]) == (["hf-dataset:org/d"], ["hf:org/tiny"])
    assert found["prepared_in_own"] == ["hf-dataset:org/d"]
    assert found["prepared_in_home"] == ["hf-dataset:org/MyData2"]
    own = {"HF_DATASETS_CACHE": str(own_home / "hub" / "datasets")}
    assert look(tmp_path, variables=own, repos=[DATA, mixed])["prepared_in_own"] == ["hf-dataset:org/MyData2"]
    (tmp_path / "work" / "org" / "d").mkdir(parents=True)
    assert look(tmp_path, work=str(tmp_path / "work"))["directories"] == ["hf-dataset:org/d"]


@pytest.mark.parametrize(
    ("status", "problem"), [(200, ""), (401, ""), (403, ""), (302, ""), (404, ""), (503, "503"), (407, "407")]
)
def test_any_answer_of_a_hub_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, problem: str) -> None:
    monkeypatch.setattr(Hub, "status", status)
    with serving(Hub) as address:
        found = look(tmp_path, tries=True, variables={"HF_ENDPOINT": f"http://{address}"})["problem"]
        assert bool(found) == bool(problem)
        assert problem in found
        setup = tmp_path / "setup.sh"
        setup.write_text(f"export HF_ENDPOINT=http://{address} HF_HOME=/models\n")
        assert look(tmp_path, tries=True, setup=str(setup))["has_own_cache"]
        for decided, why in (("1", "HF_HUB_OFFLINE is set there"), ("0", "")):
            assert look(tmp_path, tries=True, env={"HF_HUB_OFFLINE": decided})["problem"] == why


def test_hub_that_refuses_connections_is_not_reached(tmp_path: Path) -> None:
    with serving(Hub) as address:
        pass
    assert "refused" in look(tmp_path, tries=True, variables={"HF_ENDPOINT": f"http://{address}"})["problem"]


def test_a_proxy_that_refuses_is_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "status", 403)
    with serving(Hub) as address:
        variables = {"HF_ENDPOINT": "http://192.0.2.1", "http_proxy": f"http://{address}"}
        assert "403" in look(tmp_path, tries=True, variables=variables)["problem"]
        assert look(tmp_path, tries=True, variables={**variables, "no_proxy": "*"})["problem"] != ""
