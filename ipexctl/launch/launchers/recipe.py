"""Reads the recipe of a Makefile as text of a shell, for the line that a user types in place of `make TARGET`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MAKEFILES: Final = ("GNUmakefile", "makefile", "Makefile")
_RUNNERS: Final = frozenset("make gmake just task tox nox invoke inv doit rake snakemake dvc".split())  # noqa: SIM905
_VARIABLE: Final = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\s*[:?]?=\s*([^\n]*)")
_RULE: Final = re.compile(r"([\w./ -]+):(?!=)[^\n]*")


def runs_recipes(words: Sequence[str]) -> bool:
    """True for a command that runs what a file of the project says, which may be anything."""
    return "".join(words[:1]).rpartition("/")[2] in _RUNNERS


def recipe_of(text: str, words: Sequence[str]) -> str:
    """The variables of the file and the recipe of the target in `make TARGET NAME=VALUE`, each on its own line; other
    lines are empty. Without a target, the first one counts. Empty for options that name another file."""
    if any(re.match("-[Cf]|--(?:directory|file)", word) for word in words):
        return ""  # another file
    target = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
    typed = dict(word.split("=", 1) for word in words[1:] if "=" in word and not word.startswith("-"))
    found, is_inside = list[str](), False
    for line in text.split("\n"):
        shown = ""
        if line.startswith("\t"):
            shown = line.strip().lstrip("@-+ ") if is_inside else ""
        elif (variable := _VARIABLE.fullmatch(line)) is not None:
            value = typed.get(variable[1], variable[2].partition(" #")[0].strip())
            shown = f"{variable[1]}='{value}'" if "'" not in value else ""
        elif (rule := _RULE.fullmatch(line)) is not None and not line.startswith("."):
            target = target or rule[1].split()[0]
            is_inside = target in rule[1].split()
        found.append(re.sub(r"\$\((\w+)\)", r"${\1}", shown).replace("$$", "$"))
    return "\n".join(found)
