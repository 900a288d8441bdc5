"""What a script of this machine needs of the hosts' Python: its text and the project beside it are read here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted
from ipexctl.jobs.submit.preflight.imports import ScriptRequirements, install_again
from ipexctl.jobs.submit.preflight.script import Import, Script, read_script
from ipexctl.stack.env.record import records_of

if TYPE_CHECKING:
    from pathlib import Path

    from ipexctl.jobs.submit.context import ClusterContext
    from ipexctl.jobs.submit.request import RunRequest
    from ipexctl.launch.request import RankEnv


def requirements_of_script(name: str, path: Path, cwd: Path) -> ScriptRequirements:
    """Raises a UserError where it can't be read, or is no Python."""
    return _needs(_read(name, path), (path.parent, path.resolve().parent), cwd)


def requirements_of_module(name: str, cwd: Path) -> ScriptRequirements | None:
    """Of a module of the project, or of the hosts' own; None where nobody can say."""
    place = cwd.joinpath(*name.split("."))
    for path in (place.with_name(f"{place.name}.py"), place / "__main__.py"):
        if path.is_file():
            return _needs(_read(str(path.relative_to(cwd)), path), (cwd,), cwd)
    top = name.partition(".")[0]
    return None if _is_in(cwd, top) else ScriptRequirements(Script(name), (Import(top, 0),))


def completed(needs: ScriptRequirements, wishes: RunRequest, known: ClusterContext, env: RankEnv) -> ScriptRequirements:
    """With what the call and the environment say."""
    doubt = needs.doubt
    if any(export.name in ("PYTHONPATH", "PYTHONHOME") for export in wishes.options.exports):
        doubt = doubt or "PYTHONPATH is exported"
    if wishes.setup:
        doubt = doubt or f"{wishes.setup} may say where to look"
    return replace(needs, doubt=doubt, own=env.name is not None, install=command_of(env.name, known, wishes.env))


def command_of(name: str | None, known: ClusterContext, env: str) -> str:
    """What makes that environment as it is; a package more goes behind it."""
    records = [record for facts in known.facts.values() for _, record in records_of(facts)]
    return install_again(next((record for record in records if record.name == name), None), env)


def _read(name: str, path: Path) -> Script:
    try:
        return read_script(name, path.read_bytes())
    except OSError as error:
        raise UserError(
            f"the script {quoted(name)} can't be read: {error.strerror or error}", fix=f"ls -l {quoted(name)}"
        ) from None


def _needs(script: Script, places: tuple[Path, ...], cwd: Path) -> ScriptRequirements:
    modules = tuple(each for each in script.imports if not any(_is_in(place, each.module) for place in places))
    astray = tuple(each.module for each in modules if _is_in(cwd, each.module))
    return ScriptRequirements(script, modules, astray, script.doubt)


def _is_in(directory: Path, module: str) -> bool:
    """Whether Python would find it there: a file, a package, an extension."""
    return (
        (directory / module).is_dir()
        or any((directory / f"{module}{suffix}").is_file() for suffix in (".py", ".pyc", ".so"))
        or next(directory.glob(f"{module}.*.so"), None) is not None
    )
