"""Read a project's own files as text. A file that others could have written does not count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.file_reader import FileKind, NotRegularError, TooLargeError, decode_text, read_regular
from ipexctl.found_files import check_found
from ipexctl.projects.modules import TOO_LONG, is_too_long
from ipexctl.text import tilde_path

DECLARATION: Final = FileKind("a project's declaration", 512 << 10)
_MOST_BYTES: Final = 2 << 20
_MOST_TEXTS: Final = 900
_TOO_MANY: Final = (
    f"the project has more than {_MOST_BYTES >> 20} MB or {_MOST_TEXTS} files of declarations; the others do not count"
)


class TextReader:
    """Reads the text files below one directory, up to a total; `ReadText` of `declaration.py`. `on_note` gets why a
    file that exists does not count."""

    def __init__(self, directory: Path, on_note: Callable[[str], None] = lambda _: None) -> None:
        self.directory = directory
        self._on_note = on_note
        self._texts: dict[str, str] = {}
        self._bytes = 0

    def __call__(self, path: str) -> str:
        if path not in self._texts:
            self._texts[path] = self._read(self.directory / path)
        return self._texts[path]

    def _read(self, path: Path) -> str:
        """Return the text of a file; empty if it is missing, or does not count. Then a note says why."""
        try:
            if not path.is_file():
                return ""
            check_found(path)
            data = read_regular(path, DECLARATION)
            self._bytes += len(data)
            if self._bytes > _MOST_BYTES or len(self._texts) > _MOST_TEXTS:
                self._on_note(_TOO_MANY)
            elif path.suffix == ".py" and is_too_long(data):
                self._on_note(f"{tilde_path(path)} does not count: {TOO_LONG}")
            else:
                return decode_text(data, "utf-8-sig")
        except UserError as error:
            self._on_note(error.message + "; " + error.fix)
        except (TooLargeError, NotRegularError) as error:
            self._on_note(f"{tilde_path(path)} does not count: {error.strerror}")
        except (OSError, UnicodeDecodeError, ValueError):
            self._on_note(f"{tilde_path(path)} does not count: it can't be read as text in UTF-8")
        return ""
