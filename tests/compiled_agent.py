"""A fixture for tests that start the agent again and again: with the code of its modules beside their text.

In: the agent's zip as a call would send it. Out: the same with a `.pyc` for each module, which this version of Python
loads in place of compiling the text, half of the time of a short call. Any other version reads the text, as on a node.
The rule: what runs is what the text says, as it was when the test's process read it. Not for tests of the zip itself.
"""

from __future__ import annotations

import pytest

from agent_helpers import with_code
from ipexctl.remote import node_call
from ipexctl.remote.node_call import agent_zip


@pytest.fixture
def compiled_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of the agent send it with its code."""
    monkeypatch.setattr(node_call, "agent_zip", lambda *folders: with_code(agent_zip(*folders)))
