"""The check of a script's imports with the ranks' Python, without running the script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from ipexctl.remote.node_call import script_text

if TYPE_CHECKING:
    from pathlib import Path


def asked(script: dict[str, Any], **environ: str) -> dict[str, Any]:
    said = subprocess.run(
        [sys.executable, "-I", "-c", script_text("network.imports")],
        input=json.dumps({"name": "t.py", **script}) + "\n",
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(said.stdout)
    return answer


def test_what_is_not_to_be_found_is_lacking_and_nothing_is_imported(tmp_path: Path) -> None:
    (tmp_path / "added.py").write_text("raise SystemExit('it was run')")
    script = {"modules": ["os", "sys", "__main__", "pytest", "added", "no_such_module"], "source": None}
    ours = asked({**script, "own": True}, PYTHONPATH=str(tmp_path))
    assert ours == {"event": "done", "missing": ["added", "no_such_module"], "fault": None}
    theirs = asked({**script, "own": False}, PYTHONPATH=str(tmp_path))
    assert theirs["missing"] == ["no_such_module"]


def test_wrong_syntax_is_told_with_its_place() -> None:
    script = {"modules": [], "own": True}
    assert asked({**script, "source": "raise SystemExit('it was run')"})["fault"] is None
    fault = asked({**script, "source": "x = 1\nif x\n    pass\n"})["fault"]
    assert (fault["kind"], fault["line"]) == ("SyntaxError", 2)
    assert fault["python"] == "{}.{}".format(*sys.version_info[:2])
    assert asked({**script, "source": "def f():\npass\n"})["fault"]["kind"] == "IndentationError"
    assert asked({**script, "source": "x = 'a\0b'"})["fault"]["kind"] == "SyntaxError"
    assert asked({**script, "source": "name = '\udce9'  # latin-1, and it doesn't say so"})["fault"] is not None
