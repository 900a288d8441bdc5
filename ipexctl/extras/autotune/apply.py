"""Settings on a run: the spec with them, the words that type them, and the lines for ipexctl.toml. Pure."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipexctl.extras.autotune.candidates import VARIABLE
from ipexctl.option_declaration import declared
from ipexctl.spec import Export, RankOptions

if TYPE_CHECKING:
    from ipexctl.extras.autotune.model import Settings
    from ipexctl.spec import RunSpec

_NUMBERS = ("omp", "ccl_workers")


def with_settings(spec: RunSpec, settings: Settings) -> RunSpec:
    """The spec with these options, and with these variables over those of the call."""
    values: dict[str, Any] = {
        name: int(value) if name in _NUMBERS else value
        for name, value in settings
        if name in declared(RankOptions) or name == "iface"
    }
    variables = variables_of(settings)
    kept = tuple(export for export in spec.exports if export.name not in variables)
    exports = (*kept, *(Export(name, value, source="-x") for name, value in variables.items()))
    return replace(spec, **values, exports=exports)


def variables_of(settings: Settings) -> dict[str, str]:
    return {name.removeprefix(VARIABLE): value for name, value in settings if name.startswith(VARIABLE)}


def options_of(settings: Settings) -> dict[str, str]:
    """The others, by the names that they have in ipexctl.toml."""
    return {name: value for name, value in settings if not name.startswith(VARIABLE)}


def words_of(settings: Settings) -> list[str]:
    """As they are typed: `--bind none -x KMP_BLOCKTIME=0`."""
    words = [word for name, value in options_of(settings).items() for word in (f"--{name.replace('_', '-')}", value)]
    return words + [word for name, value in variables_of(settings).items() for word in ("-x", f"{name}={value}")]


def typed(settings: Settings) -> str:
    return shlex.join(words_of(settings))
