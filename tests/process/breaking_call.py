"""`breaking_call.py TARGET ACTION WORD…` calls ipexctl with these words, and breaks it once the first rank may live.

TARGET is a function as `module:name`: from then on, ACTION is executed in its place. With `start`, ACTION is executed
as soon as the supervisor has said that the ranks are started.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from ipexctl.__main__ import main
from ipexctl.errors import UserError
from ipexctl.remote.outcome import AgentEnded, HostError, TimedOut, Unreachable
from ipexctl.run.start.begin import Launch

ERRORS = {each.__name__: each for each in (UserError, AgentEnded, HostError, TimedOut, Unreachable, ValueError)}
started: list[Launch] = []
wait_for = Launch._wait_for


def act(action: str) -> None:
    """Change the mode of a path, overwrite a file, fail for want of room on a disk, or raise an error."""
    word, _, argument = action.partition(" ")
    if word == "chmod":
        os.chmod(argument, 0o777)
    elif word == "damage":
        with open(f"{started[0]._plan.rundir}/{argument}", "w", encoding="utf-8") as file:
            file.write("{")
    elif word == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")
    else:
        raise ERRORS[word]("broken")


def break_call(target: str, action: str) -> None:
    def wait_for_start(launch: Launch, event: Future[Mapping[str, Any]]) -> Mapping[str, Any]:
        reply = wait_for(launch, event)
        if event is launch._started:
            started.append(launch)
            if target == "start":
                act(action)
        return reply

    Launch._wait_for = wait_for_start  # type: ignore[method-assign, assignment]
    if target == "start":
        return
    module, _, path = target.partition(":")
    *parents, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for parent in parents:
        owner = getattr(owner, parent)
    whole = getattr(owner, name)

    def breaking(*given: Any, **named: Any) -> Any:
        return act(action) if started else whole(*given, **named)

    setattr(owner, name, breaking)


if __name__ == "__main__":
    _, target, action, *words = sys.argv
    sys.argv = ["ipexctl", *words]
    break_call(target, action)
    main()
