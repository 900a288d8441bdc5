"""What a call of run asks for, and how its words become variables for the ranks. Pure but for reading --env-file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipexctl.errors import FileError, UserError
from ipexctl.hosts.names import quoted
from ipexctl.jobs.ranks import EVERY_RANK
from ipexctl.launch.overrides import check_options
from ipexctl.launch.plan import LaunchRefusal
from ipexctl.launch.rank_distribution import distribute_ranks
from ipexctl.launch.request import Export
from ipexctl.text import is_variable_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from ipexctl.hosts.host import Host
    from ipexctl.jobs.ranks import RankSet
    from ipexctl.launch.accelerate_config import AccelerateConfig
    from ipexctl.launch.request import CommandKind, LaunchOptions


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One call of run."""

    kind: CommandKind
    words: tuple[str, ...]
    """The script, module or command, and its arguments, as they were given."""
    options: LaunchOptions
    env: str = "default"
    python: str | None = None
    """A Python of the user's, on every host."""
    setup: str | None = None
    """A file on every host that bash sources first."""
    home: str = "~/.ipexctl"
    iface: str | None = None
    cwd: Path | None = None
    sync: bool = True
    excludes: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    """Patterns of what is sent although it is left out otherwise, as credentials are."""
    data: tuple[str, ...] = ()
    """Directories that must be on every host."""
    allow_big: bool = False
    timeout: float | None = None
    restarts: int = 0
    hang_after: float = 600.0
    """Seconds without a word of any rank's until that is reported; 0: never."""
    stack: str | None = None
    torch: str | None = None
    """Which environment is to be made where it is missing."""
    accelerate: AccelerateConfig | None = None
    """A configuration of accelerate's; what it says of ranks and ports is in `options` already."""
    ranks: RankSet = EVERY_RANK
    """Which are to be shown."""

    @property
    def script(self) -> str:
        """What the run is called after."""
        return self.words[0]


def check_request(wishes: RunRequest) -> None:
    """Refuse what can't be, before any host is touched."""
    if (refusal := check_options(wishes.options)) is not None:
        raise UserError(refusal.reason, fix=refusal.fix)
    for option, path in (("--python", wishes.python), ("--setup", wishes.setup)):
        if path is not None and not path.startswith("/"):
            raise UserError(f"{option} {quoted(path)} is no absolute path", fix="its path on the hosts, from / on")


def check_ranks(wishes: RunRequest, hosts: Sequence[Host]) -> None:
    """Refuse numbers of ranks that these hosts can't have, as far as that is known without asking them."""
    options = wishes.options
    share = distribute_ranks(hosts, options.n, options.ppn, 1)
    if isinstance(share, LaunchRefusal):
        raise UserError(share.reason, fix=share.fix)
    if options.n is not None or options.ppn is not None or all(host.slots for host in hosts):
        wishes.ranks.within(sum(share.counts))


@dataclass(frozen=True, slots=True)
class Exports:
    """The user's variables; the values of secrets are kept apart from every plan that is shown."""

    exports: tuple[Export, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)


def read_exports(words: Iterable[str], files: Sequence[Path], environ: Mapping[str, str]) -> Exports:
    """`-x KEY=VALUE`, `-x KEY` (the value is our own, and secret), and the lines of --env-file (secret, too)."""
    found: dict[str, Export] = {}
    for file in files:
        for name, value in _read_env_file(file).items():
            found[name] = Export(name, value, secret=True, source=f"--env-file {file.name}")
    for word in words:
        name, equals, value = word.partition("=")
        if not is_variable_name(name):
            raise UserError(
                f"-x {quoted(word)}: {quoted(name)} is no name of a variable", fix="-x NAME=VALUE, or -x NAME"
            )
        if equals:
            found[name] = Export(name, value, source="-x")
        elif name in environ:
            found[name] = Export(name, environ[name], secret=True, source="-x")
        else:
            raise UserError(f"-x {name}: it isn't set here", fix=f"export {name}=…, or -x {name}=VALUE")
    exports = tuple(found.values())
    return Exports(exports, {export.name: export.value for export in exports if export.secret})


def _read_env_file(path: Path) -> dict[str, str]:
    """`NAME=VALUE` lines as docker reads them: no shell looks into the value; quotes around all of it go."""
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UserError(f"--env-file {path}: {said}", fix="a file of NAME=VALUE lines") from None
    found: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        name = name.strip()
        if not equals or not is_variable_name(name):
            # The line itself may be a secret: it is not shown.
            raise FileError(str(path), number, "this is not NAME=VALUE", fix="one variable a line; # begins a comment")
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        found[name] = value
    return found
