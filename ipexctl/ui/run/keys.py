"""Keys of the live view: filter, pause, scroll, help, detach, stop. Pure: maps a key to an action."""

from __future__ import annotations

import re
from typing import Final, Literal

from ipexctl.errors import UserError
from ipexctl.run.ranks import EVERY_RANK, RankSet, parse_ranks

Action = Literal["detach", "stop"]
Mode = Literal["watching", "filtering", "confirming", "help"]

HELP: Final = (
    ("/", "show only some ranks, such as 0-3,8; an empty list shows all"),
    ("space", "hold the log; again continues"),
    ("up, down, page up, page down", "scroll through the log"),
    ("d, q", "detach: the run continues"),
    ("s", "stop the run on every host, after you confirm with y"),
    ("Ctrl-C", "stop the run at once"),
    ("?", "close this help"),
)
_SCROLL: Final = {"up": 1, "down": -1, "page-up": 10, "page-down": -10, "k": 1, "j": -1}
_MAX_TYPED: Final = 200


class Controls:
    def __init__(self, ranks: RankSet = EVERY_RANK, *, keys: bool = True) -> None:
        self.keys = keys
        self.mode: Mode = "watching"
        self.ranks = ranks
        self.typed = ""
        self.error = ""
        self.paused = False
        self.scrolled = 0
        self.stopping = False

    def press(self, key: str) -> Action | None:
        if self.mode == "filtering":
            self._type(key)
        elif self.mode == "confirming":
            self.mode = "watching"
            if key in {"y", "Y"}:
                self.stopping = True
                return "stop"
        elif self.mode == "help" and key not in {"d", "q", "s"}:
            self.mode = "watching"
        elif key in {"d", "q"}:
            return "detach"
        else:
            self._watch(key)
        return None

    def _watch(self, key: str) -> None:
        self.error = ""
        if key == "/":
            self.mode, self.typed = "filtering", "" if self.ranks.everyone else str(self.ranks)
        elif key == "s":
            self.mode = "confirming"
        elif key == "?":
            self.mode = "help"
        elif key == " ":
            self.paused, self.scrolled = not self.paused, 0
        elif key in _SCROLL:
            self.scrolled = max(0, self.scrolled + _SCROLL[key])
            self.paused = self.paused or self.scrolled > 0
        elif key == "escape":
            self.paused, self.scrolled = False, 0

    def _type(self, key: str) -> None:
        if key == "enter":
            try:
                self.ranks = parse_ranks(self.typed) if self.typed.strip() else EVERY_RANK
            except UserError as failure:
                self.error = f"{failure.message} ({failure.fix})"
                return
            self.mode, self.error, self.scrolled = "watching", "", 0
        elif key == "escape":
            self.mode, self.error = "watching", ""
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif key == "clear":
            self.typed = ""
        elif len(key) == 1 and key.isprintable() and len(self.typed) < _MAX_TYPED:
            self.typed += key


_KEY_NAMES: Final = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[5~": "page-up", b"\x1b[6~": "page-down", b"\x1b": "escape",
    b"\r": "enter", b"\n": "enter", b"\x7f": "backspace", b"\x08": "backspace", b"\x15": "clear",
}  # fmt: skip


_KEY: Final = re.compile(rb"\x1b\[[^@-~]*[@-~]?|\x1bO.?|.", re.DOTALL)


def read_keys(data: bytes) -> list[str]:
    """An unknown escape sequence becomes one unknown key."""
    return [_KEY_NAMES.get(key) or key.decode("ascii", "replace") for key in _KEY.findall(data)]
