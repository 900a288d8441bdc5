"""Notes for the user before a run begins: about the job it is in or beside, restarts, and the script. Only a script
that is certain to need a GPU is refused.

- Since transformers 4.54, TrainingArguments have average_tokens_across_devices=True: `Trainer.compute_loss` multiplies
  each rank's loss by the number of ranks. A model that takes num_items_in_batch by **kwargs and ignores it gets too
  large a loss and gradients.
- A script that resumes without `--checkpoint` does so from each host's own files. If only rank 0 writes or deletes
  there, the ranks resume from different steps, and fail or wait for each other.
"""

from __future__ import annotations

import ast
import posixpath
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.allocation import SCHEDULERS
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.hosts.select import LOCAL
from ipexctl.hub.hugging_face import DTYPE_TRL, INDEXED_CPU, RESUMES_ON_CPU, RESUMING_TRL
from ipexctl.known_errors.gpu_code import GpuLine, suggestions
from ipexctl.launch.accelerate_env import before
from ipexctl.launch.launchers.cpu_options import RESUMES, is_of_trl
from ipexctl.launch.request import Gathered
from ipexctl.launch.spec import RunSpec
from ipexctl.launch.training_memory import DATA, MODEL
from ipexctl.limits import PATIENCE
from ipexctl.node.common.asked import Asked
from ipexctl.node.common.fix import Fix, ipexctl_command
from ipexctl.node.common.hub_cache import is_repo_id
from ipexctl.node.common.plan import ApartHosts, Plan
from ipexctl.node.hub.hub_check import FoundHub
from ipexctl.projects.layout import ProjectLayout
from ipexctl.projects.named_checkpoints import of_call
from ipexctl.projects.own_launches import RAY, Spawner
from ipexctl.projects.script_file import ResumeFlag, ScriptFile
from ipexctl.remote.command import Command
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.session import Session, capture
from ipexctl.run.start.start_request import StartError, StartFailure

_NEAR_END: Final = 3600
"""Seconds before the end of a job from which a note names it."""


def job_notes(context: Gathered, *, is_followed: bool = True) -> tuple[str, ...]:
    """In a job: that it ends soon, or with the call. Outside: that a scheduler manages the hosts."""
    seconds, job = context.job_seconds, context.transport.job_title(context.job)
    if seconds is not None and seconds < _NEAR_END:
        time_left = f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"
        return (f"{job} ends in {time_left}, and the run with it",)
    if context.job and not is_followed:
        return (Fix(f"the run ends with {job}, which may end with its last command; `ipexctl wait` waits for the run"),)
    batches = {name: facts.batch for name, facts in context.facts.items()}
    managed = {name: batch.schedulers[0] for name, batch in batches.items() if batch.schedulers and not batch.job}
    if not managed or context.job:
        return ()
    scheduler = SCHEDULERS.get(next(iter(managed.values())))
    name, command = scheduler if scheduler is not None else ("a scheduler", "")
    where = "this machine" if context.hosts[0].address == LOCAL.address else fold(managed)
    note = f"{name} manages {where}, and this run is in no job of it: other jobs may get the same cores, or end it"
    if command:
        note += f"; {command.format(hosts=len(managed))} gets nodes, for ipexctl run inside it"
    return (note,)


def logind_notes(context: Gathered) -> tuple[str, ...]:
    name = context.hosts[0].name
    logind = context.facts[name].logind
    if logind is None or not logind.kill_user_processes or logind.linger:
        return ()
    note = f"{name}: logind ends all processes of an account at its last logout, and the run with them"
    return (f"{note}; `loginctl enable-linger` there, once, prevents that",)


def restart_note(plan: Plan) -> str:
    first = plan.hosts[0].name
    others = [host.name for host in plan.hosts if plan.stores[host.name] != plan.stores[first]]
    if not others:
        return ""
    return (
        f"--max-restarts: what rank 0 writes on {first} is not on {fold(others)}; if only rank 0 saves the checkpoint, "
        "the ranks there start again without it and can wait forever; --checkpoint PATH brings that file or directory "
        "to all hosts before each start"
    )


def shell_note(plan: Plan, environ: Mapping[str, str]) -> str:
    """On an OMP_NUM_THREADS of the user's shell that the plan replaces by a number of its own."""
    name = "OMP_NUM_THREADS"
    own = environ.get(name, "")
    if not own.isdecimal() or plan.asked.omp or name in {each.name for each in plan.asked.exports}:
        return ""
    if {each.value for each in plan.settings if each.name == name} <= {own}:
        return ""
    return f"{name}={own} of this shell does not reach the ranks; to use it: -x {name}, or --omp {own}"


def check_gpu_code(spec: RunSpec, packages: Mapping[str, str]) -> None:
    """Raise a StartError for a script that fails on CPUs in any case. A user's torch may find a GPU. Pure."""
    script = spec.project.script
    if (
        script is None
        or spec.asked.python is not None
        or any(name.startswith(("nvidia-cu", "nvidia-nccl")) for name in packages)
    ):
        return
    lines = _without_typed(script.gpu_lines, spec.asked.argv)
    certain = [line for line in lines if line.is_certain]
    if certain:
        reason = f"{script.name} is written for GPUs, and the ranks run on CPUs"
        words = [word for line in certain for word in line.option]
        fix: str = suggestions(lines)
        if all(line.option for line in certain):
            install = ("--install",) if spec.asked.install else ()
            fix = Fix.of((ipexctl_command("run", *install, argv=(*spec.asked.program, *words)),))
        raise StartError(StartFailure(reason, fix, exit_code=2))


def _without_typed(lines: Sequence[GpuLine], argv: Sequence[str]) -> tuple[GpuLine, ...]:
    """The lines without options that the call has."""
    typed = {word.partition("=")[0] for word in argv}
    return tuple(line for line in lines if not typed.intersection(line.option[:1]))


def check_resumed_trl(asked: Asked, packages: Mapping[str, str]) -> None:
    """Raise a StartError for a version of trl that would begin at step 1 and overwrite the checkpoint. Pure."""
    version = packages.get("trl", "")
    names_checkpoint = any(word.startswith(RESUMES) for word in asked.argv[1:])
    if asked.resumed and names_checkpoint and is_of_trl(asked) and version and before(version, RESUMING_TRL):
        reason = f"trl {version} ignores {RESUMES}: {asked.script} would start over and overwrite the checkpoint"
        line = "`ipexctl install --with {trl}`" if asked.python is None else "`{python} -m pip install {trl}`"
        fix = Fix(line, python=asked.python, trl=f"trl>={RESUMING_TRL}")
        raise StartError(StartFailure(reason, fix, exit_code=2))


def trl_notes(plan: Plan, packages: Mapping[str, str]) -> Iterator[str]:
    """On what this version of trl does not do. Raises a StartError if it does not know an option of the line."""
    version, update = packages.get("trl", ""), Fix("`ipexctl install --with {trl}`", trl=f"trl>={RESUMING_TRL}")
    if not version or not is_of_trl(plan.asked):
        return
    if "--dtype" in plan.command and before(version, DTYPE_TRL):
        reason = f"trl {version} does not know --dtype: its scripts end with an error"
        fix = Fix("{update}; or add to the line: --torch_dtype bfloat16", update=update)
        raise StartError(StartFailure(reason, fix, exit_code=2))
    if plan.asked.checkpoint and before(version, RESUMING_TRL):
        text = f"trl {version} does not go on from a checkpoint: after a lost host, it starts over"
        yield Fix("{text}; {update}", text=text, update=update)


def missing_notes(context: Gathered, plan: Plan) -> Iterator[str]:
    """On a model or data set of the line that hosts lack and can't load from the hub."""
    hub = {host.name: context.hub[host.name] for host in plan.hosts if host.name in context.hub}
    for option, what, prefix in ((MODEL, "model", "hf:"), (DATA, "data set", "hf-dataset:")):
        name = context.options.get(option, "")
        lacking = [host for host, found in hub.items() if name in found.lacking and not _may_load(name, found)]
        if not lacking or (name.startswith("/") and any(name in word for word in context.asked.argv)):
            continue  # `path_checks.py` names a path of the line
        where = f"{name}, the {what} of the line, is neither in the project nor on {fold(lacking)}"
        if not is_repo_id(name):
            yield f"{where}: the script fails if it does not make it"
            continue
        where += f", which can't load it from the hub: {hub[lacking[0]].problem}"
        push, then = ipexctl_command("push", prefix + name), ""
        if option == DATA:
            then = f", and give the directory that it prints to --{DATA}; or make {name}/ in the project"
        yield Fix("{where}; to bring it: {push}{then}", where=where, push=push, then=then)


def _may_load(name: str, found: FoundHub) -> bool:
    return not found.problem and is_repo_id(name)


def script_notes(context: Gathered, plan: Plan) -> tuple[str, ...]:
    spec, asked, script = context.spec, context.asked, context.spec.project.script
    uses_it = script is not None and script.uses_trainer
    packages = context.env.packages if context.env.is_installed else {}
    ranks = plan.world_size if plan.backend != "none" else 1
    lines = _without_typed(script.gpu_lines, asked.argv) if script is not None else ()
    notes: tuple[str, ...] = (
        *missing_notes(context, plan),
        *trl_notes(plan, context.env.packages),
        f"{asked.script} seems to be written for GPUs, and the ranks run on CPUs: {suggestions(lines)}"
        if lines
        else "",
        trainer_note(uses_it=uses_it, argv=asked.argv, packages=packages, ranks=ranks),
        trainer_resume_note(script, packages, ranks)
        if script is not None and (asked.checkpoint or asked.resumed)
        else "",
    )
    notes += (
        spawner_note(script.spawner if script is not None else None, ranks, has_group=plan.backend != "none"),
        hydra_note([entry.module for entry in script.imports] if script is not None else (), asked.argv[1:], ranks),
        *hiding_notes(spec.project.layout, packages),
    )
    return tuple(note for note in notes if note)


def spawner_note(spawner: Spawner | None, ranks: int, *, has_group: bool) -> str:
    if spawner is None or not has_group:
        return ""
    place = f"{spawner.file}, line {spawner.line}"
    if spawner.strategy == RAY:
        driver = f"this script is a driver of Ray ({place}), whose workers train"
        return f"{driver}: each of {ranks} ranks would start its own: -n 1" if ranks > 1 else ""
    if spawner.strategy:
        return (
            f"Lightning's {spawner.strategy} ({place}) fails in a rank of this run: strategy='ddp' trains with these "
            "ranks, of all hosts; to start the script as it is, on one host: --backend none -n 1"
        )
    if ranks < 2:
        return ""
    return f"this script can start its own ranks ({place}); if it does, each of {ranks} ranks would do so: -n 1"


def hydra_note(modules: Collection[str], argv: Sequence[str], ranks: int) -> str:
    if "hydra" not in modules or ranks < 2 or any(word.lstrip("+").startswith("hydra.run.dir=") for word in argv):
        return ""
    return (
        "unless its configuration sets hydra.run.dir, each rank makes its own time-stamped outputs/; one for all: "
        "'hydra.run.dir=${oc.env:IPEXCTL_RUN_DIR}'"
    )


def hiding_notes(layout: ProjectLayout, packages: Collection[str]) -> Iterator[str]:
    """On modules at the project's root that Python finds before those of the environment."""
    for package in packages:
        module = package.replace("-", "_")
        for file in (f"{module}.py", f"{module}/__init__.py"):
            if (layout.root / file).is_file() and not layout.is_own(package):
                yield f"{file} in the project hides the installed package {package}"


_TRAINERS: Final = frozenset({"Trainer", "Seq2SeqTrainer"})
_FIRST: Final = "4.54"
SETTING: Final = "average_tokens_across_devices"
_OF_MODEL: Final = "accepts_loss_kwargs"


def has_trainer(tree: ast.Module) -> bool:
    return any(map(_is_trainer, ast.walk(tree)))


def uses_trainer(tree: ast.Module) -> bool:
    """True if it uses a Trainer of transformers and names neither the setting nor the model's part of it."""
    return has_trainer(tree) and not any({SETTING, _OF_MODEL} & _names(node) for node in ast.walk(tree))


def uses_accelerate(tree: ast.Module) -> bool:
    """True if its ranks meet by accelerate: it imports it, or a Trainer, which does."""
    return any(_is_trainer(node) or _imports_accelerate(node) for node in ast.walk(tree))


def _is_trainer(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
        of_transformers = node.module.partition(".")[0] == "transformers"
        return of_transformers and any(alias.name in _TRAINERS for alias in node.names)
    if isinstance(node, ast.Attribute):
        is_module = isinstance(node.value, ast.Name) and node.value.id == "transformers"
        return is_module and node.attr in _TRAINERS
    return False


def _imports_accelerate(node: ast.AST) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
        names = [node.module]
    return any(name.partition(".")[0] == "accelerate" for name in names)


def _names(node: ast.AST) -> set[object]:
    if isinstance(node, ast.keyword):
        return {node.arg}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value, node.value.removeprefix("--")}
    return set()


def trainer_note(*, uses_it: bool, argv: Sequence[str], packages: Mapping[str, str], ranks: int) -> str:
    """Empty for one rank, another version, or a call that has the setting."""
    if not uses_it or ranks < 2 or any(SETTING in word for word in argv):
        return ""
    version = packages.get("transformers", "")
    if not version or before(version, _FIRST):
        return ""
    return (
        f"transformers {version} multiplies loss and gradients by the number of ranks ({ranks}) if the model's forward "
        f"takes **kwargs and ignores num_items_in_batch; TrainingArguments({SETTING}=False) prevents that"
    )


def trainer_resume_note(script: ScriptFile, packages: Mapping[str, str], ranks: int) -> str:
    """On a Trainer that writes checkpoints, and cannot load them."""
    version, accelerate = packages.get("transformers", ""), packages.get("accelerate", "")
    is_old = before(version, RESUMES_ON_CPU) and not before(accelerate, INDEXED_CPU)
    if ranks < 2 or not is_old or not any(each.module == "transformers" for each in script.imports):
        return ""
    text = f"the Trainer of transformers {version} cannot resume on several CPU ranks; before the start: {{newer}}"
    return Fix(text, newer=script.install.with_words("--with", f"transformers>={RESUMES_ON_CPU}"))


_FLAG: Final = re.compile(r"--(?:auto[-_])?resume(?:[-_]\w+)*|--ckpt[-_]path")
_NO_PATH: Final = re.compile(r"|true|yes|auto|last|latest|best|hpc|must|allow|[0-9]+", re.IGNORECASE)
_OFF: Final = frozenset({"false", "no", "none", "0", "never"})
_MAX_PLACES: Final = 50
_MAX_FOUND: Final = 1000
_ABOVE: Final = ("*/", "*/*/")
"""A script may join a file's name to its directory."""
_MAX_RECORDS: Final = 8
_CHECKPOINT: Final = re.compile(r"(?P<kind>(?:checkpoint|step|epoch)[-_])(?P<number>[0-9]{1,12})")
_SCRIPT: Final = """\
cd {cwd} 2>/dev/null || exit 0
[ -z {path} ] || [ ! -e {path} ] || echo path
for it in {files}; do
  [ ! -f "$it" ] || printf '%s\\n' "file $it"
done | head -n {maximum}
for place in {places} . */; do
  for it in "$place"/checkpoint[-_][0-9]* "$place"/step[-_][0-9]* "$place"/epoch[-_][0-9]*; do
    [ ! -d "$it" ] || printf '%s\\n' "found $it"
  done
done | head -n {maximum}
"""


class HostCheckpoints(NamedTuple):
    names: frozenset[str] = frozenset()
    """Directories with the number of a step in their name."""
    has_path: bool = False
    files: frozenset[str] = frozenset()
    """Checkpoints that the script names."""


def find_resume_flag(argv: Sequence[str]) -> ResumeFlag | None:
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if _FLAG.fullmatch(name):
            following = argv[at + 1] if at + 1 < len(argv) and not argv[at + 1].startswith("-") else ""
            value = value if equals else following
            if value.lower() in _OFF:
                return None
            return ResumeFlag(name, "" if _NO_PATH.fullmatch(value) else posixpath.normpath(value))
    return None


_LAST_CHECKPOINT: Final = "get_last_checkpoint"


def find_resume_call(tree: ast.Module) -> ResumeFlag | None:
    """Transformers' `get_last_checkpoint`, if the script calls it and does not mend the Trainer's resume itself."""
    names = {name for node in ast.walk(tree) for name in _names(node)}
    return ResumeFlag(_LAST_CHECKPOINT) if _LAST_CHECKPOINT in names and "register_package" not in names else None


def earlier_checkpoint(spec: RunSpec, records: Sequence[RunRecord]) -> ResumeFlag | None:
    """The PATH that the script's last run had for `--checkpoint`."""
    of_project = [record for record in reversed(records) if record.project == str(spec.project.root)]
    for record in of_project[:_MAX_RECORDS]:
        path = record.plan.asked.checkpoint
        is_same = record.plan.asked.argv[:1] == (spec.asked.script,)
        if isinstance(path, str) and path and is_same:
            return ResumeFlag(f"run {record.id} had --checkpoint {path}", posixpath.normpath(path), path)
    return None


def check_resumed(
    nodes: Sequence[Host], spec: RunSpec, plan: Plan, pool: SessionPool, records: Sequence[RunRecord]
) -> ApartHosts | None:
    """One round trip for a script that may resume without `--checkpoint` on several hosts."""
    if spec.asked.checkpoint or len(nodes) < 2:
        return None
    argv, script = spec.asked.argv[1:], spec.project.script
    flag = find_resume_flag(argv) or (script.resumes if script is not None else None)
    flag = flag or earlier_checkpoint(spec, records)
    variables = {each.name: each.value for each in spec.asked.exports}
    named = of_call(script.checkpoints, argv, variables) if script is not None else ()
    if flag is None and not named:
        return None
    search = search_script(flag, argv, plan.cwd, named)

    def find(host: Host, session: Session) -> HostCheckpoints | None:
        del host
        result = capture(session, Command(search, "find checkpoints"), silence=PATIENCE)
        return parse_checkpoints(result.stdout.decode(errors="replace")) if result.ended.ok else None

    found = {done.host.name: done.result for done in pool.each(nodes, find)}
    answers = {host.name: answer for host in nodes if (answer := found[host.name]) is not None}
    apart = find_apart(flag, argv, answers) if flag is not None else None
    return apart or find_differing(spec.asked.script, answers)


def search_script(flag: ResumeFlag | None, argv: Sequence[str], cwd: str, named: Sequence[str] = ()) -> str:
    """The shell script that finds checkpoints on a host; `parse_checkpoints` reads its output."""
    places, path = shlex.join(_places_in(argv)), shlex.quote(flag.path if flag is not None else "")
    quoted = ["*".join(shlex.quote(part) for part in name.split("*")) for name in named]
    files = " ".join(" ".join((name, *(above + name.lstrip("/") for above in _ABOVE))) for name in quoted)
    return _SCRIPT.format(cwd=shlex.quote(cwd), path=path, places=places, files=files, maximum=_MAX_FOUND)


def _places_in(argv: Sequence[str]) -> list[str]:
    values = [word.partition("=")[2] if word.startswith("-") else word for word in argv]
    paths = [posixpath.normpath(value) for value in values if value and value.isprintable()]
    return [f"./{path}" if path.startswith("-") else path for path in dict.fromkeys(paths)][:_MAX_PLACES]


def parse_checkpoints(output: str) -> HostCheckpoints:
    lines = output.splitlines()
    names = (posixpath.normpath(line[len("found ") :]) for line in lines if line.startswith("found "))
    found = frozenset(name for name in names if _CHECKPOINT.fullmatch(posixpath.basename(name)))
    files = frozenset(posixpath.normpath(line[len("file ") :]) for line in lines if line.startswith("file "))
    return HostCheckpoints(found, "path" in lines, files)


def find_differing(script: str, found: Mapping[str, HostCheckpoints]) -> ApartHosts | None:
    """A checkpoint that only some hosts have, because rank 0 of an earlier run wrote it there."""
    files = sorted({file for host in found.values() for file in host.files})
    for file in files:
        having = [name for name, host in found.items() if file in host.files]
        if lacking := [name for name in found if name not in having]:
            where = f"which is on {fold(having)}, and not on {fold(lacking)}"
            return ApartHosts(f"{script} names {file}, {where}", file)
    return None


def find_apart(flag: ResumeFlag, argv: Sequence[str], found: Mapping[str, HostCheckpoints]) -> ApartHosts | None:
    """Which hosts have another newest checkpoint, or lack the one that the flag names; None if they agree."""
    lacking = [name for name, host in found.items() if not host.has_path]
    having = [name for name, host in found.items() if host.has_path]
    if flag.path and having and lacking:
        what = f"{flag.path} is on {fold(having)}, and not on {fold(lacking)}"
        return ApartHosts(f"{flag.name}: {what}", flag.place or posixpath.dirname(flag.path) or flag.path)
    named = {flag.path} if flag.path else set(_places_in(argv))
    newest = {name: _newest(host) for name, host in found.items()}
    places = {place for host in newest.values() for place in host if place[0] in named}
    if not places and not flag.path:
        places = {place for host in newest.values() for place in host}
    for place, kind in sorted(places):
        by_checkpoint: dict[str, list[str]] = {}
        for name, host_newest in newest.items():
            number = host_newest.get((place, kind))
            by_checkpoint.setdefault("none" if number is None else f"{kind}{number}", []).append(name)
        if len(by_checkpoint) > 1:
            hosts = ", ".join(f"{checkpoint} on {fold(names)}" for checkpoint, names in by_checkpoint.items())
            return ApartHosts(f"{flag.name}: the newest checkpoint in {place} is {hosts}", place)
    return None


def _newest(host: HostCheckpoints) -> dict[tuple[str, str], int]:
    """A directory and the kind of name → the highest number."""
    newest: dict[tuple[str, str], int] = {}
    for name in host.names:
        place, last = posixpath.split(name)
        match = _CHECKPOINT.fullmatch(last)
        if match is not None:
            key, number = (place or ".", match["kind"]), int(match["number"])
            newest[key] = max(number, newest.get(key, number))
    return newest


def resume_note(apart: ApartHosts) -> str:
    return (
        f"{apart.what}; ranks that resume from different steps fail or wait for each other; --checkpoint "
        f"{shlex.quote(apart.place)} gives all hosts the newest complete one before each start"
    )
