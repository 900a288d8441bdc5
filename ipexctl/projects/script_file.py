"""Define what is known of a script and its project before a host is contacted: its imports, what it needs of MPI, the
hub and the hosts, and where it lies. `run/start/script_reading.py` and `run/start/start_project.py` fill the values
in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from ipexctl.node.common.fix import FixCommand, ipexctl_command
from ipexctl.projects.layout import NO_LAYOUT, ProjectLayout
from ipexctl.projects.modules import Import
from ipexctl.projects.named_checkpoints import NamedCheckpoint
from ipexctl.projects.requirement_files import RequirementFiles

_LONGEST_SCRIPT: Final = 500_000
"""Characters; the syntax of a longer script is not checked."""


_INSTALL: Final = ipexctl_command("install")


class MpiImport(NamedTuple):
    module: str
    place: str
    """Where the import is, as in `train.py, line 3`."""
    is_certain: bool
    """False in a function, an `if` or a `try`."""


class ResumeFlag(NamedTuple):
    name: str
    path: str = ""
    """The checkpoint that the script names; empty if it chooses one itself."""
    place: str = ""
    """What `--checkpoint` should name; empty if only the hosts' files show it."""


@dataclass(frozen=True, slots=True)
class ScriptFile:
    name: str
    """The path as typed, relative to the working directory."""
    text: str | None = None
    """None if the file is not text: a zip archive, compiled code."""
    imports: tuple[Import, ...] = ()
    """Modules that are not the project's, which the script or the project's own modules import."""
    own_imports: tuple[tuple[Import, str], ...] = ()
    """The project's modules, with their path relative to the root and without suffix."""
    own_files: tuple[str, ...] = ()
    """The project's files that the script imports in any case, relative to the root."""
    missing: tuple[Import, ...] = ()
    """Dotted modules of own packages that no file has."""
    doubt: str = ""
    """Why a missing module may still be found when the script runs."""
    doubts_all: bool = True
    """False if only a module that exists somewhere in the project may be found."""
    own: bool = True
    """False for the user's own Python, to which a login's variables apply."""
    install: FixCommand = _INSTALL
    """The command that rebuilds a damaged environment; packages are appended to it."""
    install_by_run: FixCommand | None = None
    """The `ipexctl run --install` that installs the project's requirements file; None if `run` would not use it, or
    this call has named extras or groups."""
    packages: frozenset[str] = frozenset()
    """Normalized names of the packages in the environment."""
    uses_trainer: bool = False
    uses_accelerate: bool = False
    loads_by_name: bool = False
    """True if modules are imported whose names the code makes: `imports` may lack what they import."""
    resumes: ResumeFlag | None = None
    """How the script resumes without an argument that says so."""
    checkpoints: tuple[NamedCheckpoint, ...] = ()
    """Checkpoints that the script's text names."""
    uses_hub: bool = False
    """True if the script imports a library that loads from a hub."""
    mpi_import: MpiImport | None = None
    """Its first import of a module that needs mpirun."""
    files: tuple[str, ...] = ()
    """Files that the script's text names."""
    notes: tuple[str, ...] = ()
    """What of the script and its modules is not checked."""
    layout: ProjectLayout | None = None
    """None if the script is in no project."""
    requirements: RequirementFiles = RequirementFiles()  # noqa: RUF009 - immutable
    is_installed_by_run: bool = False
    """True if this call has just installed the project's requirements."""
    names_packages: bool = False
    """True if this call has `-r` or `--with`, beside which no extra or group may be named."""
    call_from_above: FixCommand | None = None
    """The command to type if a directory above the working directory has the module of `-m`."""

    def line(self, number: int) -> str:
        """Return a line of the script, counted from 1; empty if there is no such line."""
        lines = (self.text or "").split("\n")
        return lines[number - 1].rstrip("\r") if 0 < number <= len(lines) else ""

    @property
    def source(self) -> bytes:
        """The text as bytes; empty for one that is too long or was not read."""
        text = self.text if self.text is not None and len(self.text) <= _LONGEST_SCRIPT else ""
        return text.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class ProjectLocation:
    root: Path
    subdirectory: str
    """The ranks' working directory, relative to the root."""
    command: tuple[str, ...]
    """A script is relative to the working directory."""
    script: ScriptFile | None = None
    """None if nothing is known of the command."""
    layout: ProjectLayout = field(default=NO_LAYOUT, hash=False)
    requirements: RequirementFiles = RequirementFiles()  # noqa: RUF009 - immutable
    entry: str = ""
    """The `module:function` of a console script of the project."""
    shell_script: str = ""
    """The file of shell commands that each rank would run; its Python is `script`."""
    is_tool: bool = False
    """True if the word in place of a script must be a command of the environment."""
    hint: str = ""
    """How to make the current directory the project, if it holds the script, and the project has no mark."""

    @property
    def mpi_import(self) -> MpiImport | None:
        """The script's import of an MPI, if it has one."""
        return self.script.mpi_import if self.script is not None else None


NO_PROJECT: Final = ProjectLocation(Path(), ".", ())
