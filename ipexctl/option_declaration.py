"""Declares an option once for the command line, ipexctl.toml, playbooks and the hosts.

An option that more than the command line has is a field of a frozen dataclass of `spec.py`, made by `declare`:
`RankOptions` (what a rank gets), `SyncOptions`, `RunOptions`.
The field has the type and the default; its `Declaration` has all else. From it follow
- the option on the command line, its help and its key in ipexctl.toml: `cli/options.py: grouped`
- the option of the playbook modules run and sync: `extras/play/modules/specs.py: declared_options`
- its limits: `launch/overrides.py: check_limits`, which the command, ipexctl.toml and playbooks call
- the note of `ipexctl export` where another launcher lacks it: `extras/export/command.py`
- the way to the hosts: `spec.py: asked_of`, from which `ProcessOptions` of `node/common/job.py` takes what the rank
  wrapper applies.
The rule: default, limits and help of such an option are in its declaration, and not written a second time; a default
that others need, too, has its name from `option_defaults.py`.
"""

from __future__ import annotations

import dataclasses
import shlex
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_DECLARATION: Final = "declaration"


class Declaration(NamedTuple):
    """What is known of an option beside its name, type and default."""

    words: str
    """As in the help: `--export -x KEY[=VALUE]`."""
    help: str
    """Its help; `{default}` stands for the default."""
    panel: str = ""
    """The group of options in `ipexctl run --help-all`."""
    least: float | None = None
    most: float | None = None
    kind: str = ""
    """Its kind in a playbook, where the Python type does not say it: a path, the name of an environment."""
    lost_in: tuple[str, ...] = ()
    """The targets of `ipexctl export` that cannot express it, and the consequence."""
    consequence: str = ""
    in_sh: str = ""
    """The words in front of a command with the same effect, of an option that the rank wrapper applies; `{}` stands for
    the value."""

    @property
    def flag(self) -> str:
        """The long name, or the only one."""
        names = [word for word in self.words.split() if word.startswith("-")]
        return next((name for name in names if name.startswith("--")), names[0])


def declare(words: str, help_text: str, default: Any = None, **settings: Any) -> Any:
    """A field of a dataclass of options; `settings` are other fields of its `Declaration`."""
    return dataclasses.field(default=default, metadata={_DECLARATION: Declaration(words, help_text, **settings)})


def declaration_of(field: dataclasses.Field[Any]) -> Declaration | None:
    return field.metadata.get(_DECLARATION)


def declared(options: Any) -> dict[str, Declaration]:
    """The declared options of a dataclass or a value of one, by name, in the order of the fields."""
    found = ((field.name, declaration_of(field)) for field in dataclasses.fields(options))
    return {name: declaration for name, declaration in found if declaration is not None}


def values_of(options: Any) -> dict[str, Any]:
    """The values of the declared options, by name."""
    return {name: getattr(options, name) for name in declared(options)}


def with_default(text: str, default: Any) -> str:
    """The help with the default in place of `{default}`."""
    return text.replace("{default}", f"{default:g}" if isinstance(default, float) else str(default))


def words_in_sh(kind: type, values: Mapping[str, Any]) -> tuple[str, ...]:
    """The words in front of a rank's command by which a shell does what the rank wrapper does with these values."""
    forms = {field.name: (field.default, declaration_of(field)) for field in dataclasses.fields(kind)}
    given = [
        declaration.in_sh.format(values[name])
        for name, (default, declaration) in forms.items()
        if declaration is not None and values.get(name, default) != default
    ]
    return tuple(word for words in given for word in shlex.split(words))
