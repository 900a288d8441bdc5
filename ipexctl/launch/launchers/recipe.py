"""Read the recipe of a Makefile as shell text, to find the launcher line that a user can paste in place of `make
TARGET`. Nothing here reads a file or contacts a host.

`make` itself is never run, and only plain variables and recipes are read: a Makefile can compute anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MAKEFILES: Final = ("GNUmakefile", "makefile", "Makefile")
_RUNNERS: Final = frozenset("make gmake just task tox nox invoke inv doit rake snakemake dvc".split())  # noqa: SIM905
_VARIABLE: Final = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\s*[:?]?=\s*([^\n]*)")
_RULE: Final = re.compile(r"([\w./ -]+):(?!=)[^\n]*")


def runs_recipes(words: Sequence[str]) -> bool:
    """True for a command such as `make` or `just`, which runs whatever a file of the project says."""
    return "".join(words[:1]).rpartition("/")[2] in _RUNNERS


def recipe_of(text: str, words: Sequence[str]) -> str:
    """Return the variables of the Makefile and the recipe of the target in `make TARGET NAME=VALUE`, as shell text.

    Each line keeps its number: other lines are empty. Without a target, the first one counts. Empty if the options of
    `make` name another file or directory, because that file is not read.
    """
    if any(re.match("-[Cf]|--(?:directory|file)", word) for word in words):
        return ""
    target = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
    typed = dict(word.split("=", 1) for word in words[1:] if "=" in word and not word.startswith("-"))
    shell_lines: list[str] = []
    is_in_recipe = False
    for line in text.split("\n"):
        shell_line = ""
        if line.startswith("\t"):
            shell_line = line.strip().lstrip("@-+ ") if is_in_recipe else ""
        elif (variable := _VARIABLE.fullmatch(line)) is not None:
            value = typed.get(variable[1], variable[2].partition(" #")[0].strip())
            shell_line = f"{variable[1]}='{value}'" if "'" not in value else ""
        elif (rule := _RULE.fullmatch(line)) is not None and not line.startswith("."):
            target = target or rule[1].split()[0]
            is_in_recipe = target in rule[1].split()
        shell_lines.append(re.sub(r"\$\((\w+)\)", r"${\1}", shell_line).replace("$$", "$"))
    return "\n".join(shell_lines)
