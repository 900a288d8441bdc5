"""The fixed mutants of `fixed.yaml`: changes of decisions and pages, each with a test that must notice it. Pure.

The text of a line is the key, not its number, so a mutant stays valid while the code around it changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import yaml

from import_graph import ROOT

FILE: Final = ROOT / "tools/mutants/fixed.yaml"


class FixedMutant(NamedTuple):
    file: str
    """Relative to the root."""
    before: str
    after: str
    test: str
    """Node id of a test function, which may have many cases."""

    def apply(self, text: str) -> str | None:
        """Return the mutated text of the file; None unless the file contains `before` exactly once."""
        return text.replace(self.before, self.after) if text.count(self.before) == 1 else None


def read_fixed(room: str = "") -> list[FixedMutant]:
    """Return the mutants of a package or module below ipexctl, or of all files, in the order of their files."""
    mutants = [FixedMutant(**row) for row in yaml.safe_load(FILE.read_text(encoding="utf-8"))]
    if not room:
        return mutants
    return [mutant for mutant in mutants if Path(mutant.file).with_suffix("").is_relative_to(f"ipexctl/{room}")]
