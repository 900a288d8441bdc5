"""A project's build backend is asked what it requires: by uv, on the node, without the account's secrets, bounded."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from ipexctl.node.common.files import sha256_of
from ipexctl.node.env.env_replies import ListReply
from ipexctl.node.env.project_list import MEMORY, list_request
from ipexctl.stack.lock.wheel_lock import uv_here

PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "own.build:hooks"\nbackend-path = ["backend"]\n'
BACKEND = """
import os, pathlib, sys, time
class hooks:
    @staticmethod
    def prepare_metadata_for_build_wheel(directory, settings):
        BODY
        info = pathlib.Path(directory, "x-1.dist-info")
        info.mkdir()
        lines = pathlib.Path("list.txt").read_text().split()
        text = "Metadata-Version: 2.1\\nName: x\\n" + "".join(f"Requires-Dist: {line}\\n" for line in lines)
        (info / "METADATA").write_text(text + "\\nRequires-Dist: of-the-description\\n")
"""


def ask(tmp_path: Path, body: str, *, timeout: float = 60) -> ListReply:
    tree, home = tmp_path / "tree", tmp_path / "home"
    (tree / "backend" / "own").mkdir(parents=True)
    (tree / "pyproject.toml").write_text(PYPROJECT)
    (tree / "list.txt").write_text("tqdm>=4\neinops\n")
    (tree / "out").symlink_to(tmp_path)
    (tree / "backend" / "own" / "build.py").write_text(BACKEND.replace("BODY", body))
    packed = tmp_path / "project.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(tree, "project-0")
    kept = home / "wheels" / sha256_of(packed) / packed.name
    kept.parent.mkdir(parents=True)
    packed.rename(kept)
    uv = uv_here()
    assert uv is not None
    reply = list_request(
        {
            "home": str(home),
            "uv": uv,
            "archive": {"name": packed.name, "sha256": kept.parent.name, "size": kept.stat().st_size},
            "directory": "project-0",
            "backend": "own.build:hooks",
            "requires": [],
            "paths": ["backend"],
            "python": "",
            "sources": [],
            "settings": {},
            "logins": {},
            "timeout": timeout,
        },
        None,  # type: ignore[arg-type]  # nothing follows the request
    )
    assert list((home / "tmp").iterdir()) == []
    return reply


def test_the_backend_answers_without_secrets_and_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    found = "(_ for _ in ()).throw(SystemExit(str(os.environ)))"
    body = f"'WANDB_API_KEY' in os.environ and {found}; os.path.lexists('out') and {found}"
    assert ask(tmp_path, body) == ListReply(("tqdm>=4", "einops"))


@pytest.mark.parametrize(
    ("body", "timeout", "said"),
    [
        ("raise RuntimeError('no GPU')", 60, "no GPU"),
        ("time.sleep(60)", 2, "more than 2 s"),
        (f"bytearray({MEMORY})", 60, "MemoryError"),
        ("os.rename(directory, directory + '2')", 60, "No such file"),
    ],
)
def test_a_backend_that_fails_says_why(tmp_path: Path, body: str, timeout: float, said: str) -> None:
    reply = ask(tmp_path, body, timeout=timeout)
    assert reply.requires == ()
    assert said in reply.message
