"""Declares an option once for the command line, ipexctl.toml, playbooks and the hosts. Such an option is a field, made
by `declare`, of a frozen dataclass: `RankOptions` (what a rank gets), `SyncOptions`, `RunOptions`. From its
`Declaration` come the command-line option, its help and its key in ipexctl.toml (`commands/shared_options.py:
grouped`), the playbook option (`extras/play/modules/__init__.py: declared_options`), its limits (`launch/overrides.py:
check_limits`), the note of `ipexctl export` if a launcher lacks it, and `AgentOptions` on the hosts
(`node/common/plan.py`).
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ipexctl.errors import UserError

FORKS: Final = 32
CONNECT_SECONDS: Final = 10.0
RECONNECT_SECONDS: Final = 300.0
"""A call stops following a run after this time without a frame from node0. The run keeps running."""
TRANSPORT: Final = "auto"
"""How hosts are reached: by job steps inside an allocation that allows them, else by ssh."""
DEFAULT_ENV: Final = "default"
DEFAULT_HOME: Final = "~/.ipexctl"
HUB_MACHINE: Final = "auto"
"""Where downloads from a hub run: on the first host that reaches it, else on the control machine."""
SLURM_LAUNCHER: Final = "auto"
"""For `export slurm`: srun for gloo, else mpirun."""
LAB_HOSTS: Final = 3
LAB_USER: Final = "ipex"
LAB_HOMES: Final = "/home"

_DECLARATION: Final = "declaration"
_LONGEST: Final = 10_000_000
"""Seconds, about four months. A longer timeout is a mistake, and too long for some system calls."""


class Declaration(NamedTuple):
    words: str
    """Names and value, as in the help: `--export -x KEY[=VALUE]`."""
    help: str
    panel: str = ""
    """The group of options in `ipexctl run --help-all`."""
    minimum: float | None = None
    maximum: float | None = None
    kind: str = ""
    """Kind of value in a playbook, if the Python type does not tell: `path`, `env`."""
    lost_in: tuple[str, ...] = ()
    """Targets of `ipexctl export` that can't express the option."""
    consequence: str = ""
    in_sh: str = ""
    """Words to put before a command in a shell for the same effect as in the rank wrapper. `{}`: the value."""

    @property
    def flag(self) -> str:
        """The long name, or the only one."""
        names = [word for word in self.words.split() if word.startswith("-")]
        return next((name for name in names if name.startswith("--")), names[0])


def declare(words: str, help_text: str, default: Any = None, **settings: Any) -> Any:
    return dataclasses.field(default=default, metadata={_DECLARATION: Declaration(words, help_text, **settings)})


def declaration_of(field: dataclasses.Field[Any]) -> Declaration | None:
    return field.metadata.get(_DECLARATION)


def declared(options: Any) -> dict[str, Declaration]:
    found = ((field.name, declaration_of(field)) for field in dataclasses.fields(options))
    return {name: declaration for name, declaration in found if declaration is not None}


def values_of(options: Any) -> dict[str, Any]:
    return {name: getattr(options, name) for name in declared(options)}


def with_default(text: str, default: Any) -> str:
    return text.replace("{default}", f"{default:g}" if isinstance(default, float) else str(default))


def words_in_sh(kind: type, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Words before a rank's command that make a shell do what the rank wrapper does with these values."""
    forms = {field.name: (field.default, declaration_of(field)) for field in dataclasses.fields(kind)}
    given = [
        declaration.in_sh.format(values[name])
        for name, (default, declaration) in forms.items()
        if declaration is not None and values.get(name, default) != default
    ]
    return tuple(word for words in given for word in shlex.split(words))


def check_seconds(option: str, seconds: float | None) -> None:
    if seconds is not None and not 0 < seconds <= _LONGEST:
        raise UserError(f"{option} must be a number of seconds up to {_LONGEST:,}, not {seconds}")


PROJECT: Final = "Project files"


# Without eq and repr, which the spec has: it is made at each start.
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SyncOptions:
    exclude: tuple[str, ...] = declare(
        "--exclude PAT", "Exclude this .gitignore pattern from the sync; repeatable.", (), panel=PROJECT
    )
    include: tuple[str, ...] = declare(
        "--include PAT",
        "Sync files that are excluded by default, such as credentials; repeatable.",
        (),
        panel=PROJECT,
        lost_in=("shell",),
        consequence="it leaves credentials out",
    )
    data: tuple[str, ...] = declare(
        "--data DIR", "Directory that every host already has; it is not synced. Repeatable.", (), panel=PROJECT
    )
    allow_big: bool = declare("--allow-big", "Sync a project of more than 1 GB or 20,000 files.", False, panel=PROJECT)
