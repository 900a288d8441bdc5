"""A fixture for tests that start the agent again and again: with the code of its modules beside their text.

In: the agent's zip as a call would send it. Out: the same with a `.pyc` for each module, which this version of Python
loads in place of compiling the text, half of the time of a short call. Any other version reads the text, as on a node.
The rule: what runs is what the text says, as it was when the test's process read it. Not for tests of the zip itself.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import zipfile
from importlib import _bootstrap_external  # type: ignore[attr-defined]  # the only one that makes such a file in memory

import pytest

from ipexctl.remote import node_call
from ipexctl.remote.node_call import agent_zip


@functools.cache
def with_code(packed: bytes) -> bytes:
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(packed)) as source, zipfile.ZipFile(changed, "w") as target:
        for item in source.infolist():
            text = source.read(item)
            code = compile(text, item.filename, "exec", dont_inherit=True)
            unchecked = _bootstrap_external._code_to_hash_pyc(code, importlib.util.source_hash(text), False)
            target.writestr(item, text)
            target.writestr(f"{item.filename}c", unchecked)
    return changed.getvalue()


@pytest.fixture
def compiled_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of the agent send it with its code."""
    monkeypatch.setattr(node_call, "agent_zip", lambda *folders: with_code(agent_zip(*folders)))
