"""What a user should know before a run starts: checks that refuse the run, and notes that do not.

- `SCRIPT_CHECKS` refuse a script that cannot work with the packages of the environment; `pipeline.make_plan` calls
  them.
- `PLAN_NOTES` become part of the plan, which `plan.json` and its readers keep.
- `DRY_RUN_NOTES` and `BEFORE_START_NOTES` are shown by the call alone, `AFTER_START_NOTES` once the ranks live.

A note may be wrong about a script; a check may not.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from ipexctl.hosts.allocation import SCHEDULERS
from ipexctl.hosts.nodeset import fold
from ipexctl.hosts.select import LOCAL
from ipexctl.hub.hugging_face import DTYPE_TRL, INDEXED_CPU, RESUMES_ON_CPU, RESUMING_TRL
from ipexctl.launch.accelerate_config import remarks
from ipexctl.launch.accelerate_env import before, unsupported_settings
from ipexctl.launch.launchers.cpu_options import RESUMES, is_of_trl
from ipexctl.launch.launchers.line import is_shell, launcher_inside
from ipexctl.launch.other_runs import notes_on
from ipexctl.launch.run_context import RunContext
from ipexctl.launch.spec import RunSpec
from ipexctl.launch.training_memory import DATA, MODEL
from ipexctl.node.common.fix import Fix, ipexctl_command
from ipexctl.node.common.hub_cache import is_repo_id
from ipexctl.node.common.placeholders import RUN, used_names
from ipexctl.node.common.plan import Plan
from ipexctl.node.env.check import normalize
from ipexctl.projects.root import real_path
from ipexctl.projects.trainer_use import SETTING
from ipexctl.run.start.script_imports import check_own_modules
from ipexctl.run.start.start_request import StartError
from ipexctl.sync.path_notes import PathNotes
from ipexctl.text import format_count

_SHOWN_NOTES: Final = PathNotes("start-notes")
"""For each project, digests of the notes that its last calls have shown."""
_MOST_CALLS_REMEMBERED: Final = 30
_SOON: Final = 3600
"""A job that ends within so many seconds is worth a note."""
# Refusals


def check_modules_of_project(spec: RunSpec, packages: Mapping[str, str]) -> None:
    """Refuse a script that imports modules of the project's own packages that no file contains. Reads the project's
    directory."""
    if spec.project.script is not None:
        check_own_modules(spec.project.script, frozenset(map(normalize, packages)))


SCRIPT_CHECKS: Final[tuple[Callable[[RunSpec, Mapping[str, str]], None], ...]] = (check_modules_of_project,)
"""Each raises a StartError for a script that would fail with these packages of the environment."""

# Notes that are in the plan


def copies_notes(context: RunContext, plan: Plan) -> tuple[str, ...]:
    """Refuse to start several copies of a command that may start the ranks itself: a shell script, or a launcher.

    A call with -n or --ppn says how many ranks are wanted, so it is never refused. A shell's commands behind `--` get a
    note instead. Raises a StartError."""
    spec, asked = context.spec, context.asked
    is_counted = asked.n is not None or asked.ppn is not None
    if is_counted or plan.world_size < 2 or (asked.is_behind_dashes and used_names(asked.argv) - {RUN}):
        return ()
    is_of_shell = asked.kind == "command" and is_shell(asked.script)
    shell = spec.project.shell_script or ("the shell's line" if is_of_shell else "")
    launcher = "" if shell else launcher_inside(asked.argv)
    if not (shell or launcher):
        return ()
    reason = f"each of {plan.world_size} ranks would run all of {shell}, in which no launcher is seen"
    if launcher:
        reason = f"{asked.script} may start ranks itself ({launcher}): each of {plan.world_size} ranks would do so"
    one = ipexctl_command("run", "-n", "1", argv=asked.program)
    if shell and asked.is_behind_dashes:
        return (Fix("{reason}; if one is to run it: {one}", reason=reason.replace("would run", "runs"), one=one),)
    each = ipexctl_command("run", "--ppn", str(plan.world_size // len(plan.hosts)), argv=asked.program)
    other = "paste its line of Python" if shell else "paste the line of the training"
    fix = Fix("if one is to run it: {one}; if each is: {each}; or {other}", one=one, each=each, other=other)
    raise StartError.because(reason, fix, exit_code=2)


def accelerate_notes(context: RunContext, _: Plan) -> tuple[str, ...]:
    """Warn of fields of an accelerate config that ipexctl does not follow."""
    config = context.spec.accelerate
    if config is None:
        return ()
    node0 = context.hosts[0]
    own = {node0.name, node0.address, *context.facts[node0.name].network.addresses}
    notes = remarks(config, len(context.hosts), own)
    return (*notes, *unsupported_settings(config, context.env.packages))


# Notes that only the call shows


def _installed(context: RunContext) -> Mapping[str, str]:
    return context.env.packages if context.env.is_installed else {}


def job_notes(context: RunContext, _: Plan) -> tuple[str, ...]:
    """Warn that the job ends soon, or with this call; outside of a job, that a scheduler manages the hosts."""
    seconds, job = context.job_seconds, context.transport.job_title(context.job)
    if seconds is not None and seconds < _SOON:
        time_left = f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"
        return (f"{job} ends in {time_left}, and the run with it",)
    if context.job and not context.asked.is_followed:
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


def logind_notes(context: RunContext, _: Plan) -> tuple[str, ...]:
    """Warn that logind on node0 ends the run when its account logs out there for the last time."""
    name = context.hosts[0].name
    logind = context.facts[name].logind
    if logind is None or not logind.kill_user_processes or logind.linger:
        return ()
    note = f"{name}: logind ends all processes of an account at its last logout, and the run with them"
    return (f"{note}; `loginctl enable-linger` there, once, prevents that",)


def restart_notes(context: RunContext, plan: Plan) -> Iterator[str]:
    """Warn that a checkpoint which rank 0 writes is only on its host, where ranks are restarted without
    --checkpoint."""
    asked = context.asked
    # With --keep-going, copies are started again where they were.
    if not asked.max_restarts or asked.keep_going or asked.checkpoint:
        return
    first = plan.hosts[0].name
    others = [host.name for host in plan.hosts if plan.stores[host.name] != plan.stores[first]]
    if others:
        yield (
            f"--max-restarts: what rank 0 writes on {first} is not on {fold(others)}; if only rank 0 saves the "
            "checkpoint, the ranks there start again without it and can wait forever; --checkpoint PATH brings that "
            "file or directory to all hosts before each start"
        )


def batch_notes(context: RunContext, plan: Plan) -> Iterator[str]:
    """Warn that a resumed run with fewer ranks than the first one has a smaller global batch, unless the script reads
    $IPEXCTL_FIRST_WORLD_SIZE."""
    script = context.spec.project.script
    keeps = script is not None and "IPEXCTL_FIRST_WORLD_SIZE" in (script.text or "")
    if context.asked.resumed and plan.world_size < plan.first_world_size and not keeps:
        yield (
            f"{format_count(plan.world_size, 'rank')} instead of {plan.first_world_size}: the global batch is smaller "
            f"({plan.world_size}/{plan.first_world_size}) unless the script's own settings grow with "
            "$IPEXCTL_FIRST_WORLD_SIZE"
        )


class LibraryRule(NamedTuple):
    """Versions of a library that give a wrong result or lose a checkpoint, without an error that says so."""

    library: str
    is_affected: Callable[[str], bool]
    """Of the installed version, as in `1.14.0`."""
    applies: Callable[[RunContext, Plan], bool]
    """True for a run that meets the fault."""
    text: str
    """What the library does; `{version}` and `{ranks}` are filled in."""
    needs: str = ""
    """The requirement that mends it, as in `trl>=1.14.1`; empty if the text says what to change."""
    refuses: bool = False
    """True if the run would overwrite or fail at once, so that it does not start."""


def _resumes_trl(context: RunContext, plan: Plan) -> bool:
    names_checkpoint = any(argument.startswith(RESUMES) for argument in context.asked.argv[1:])
    return bool(context.asked.resumed) and names_checkpoint and is_of_trl(plan.asked)


def _has_group(plan: Plan) -> bool:
    """True if the ranks train together, not each on its own."""
    return plan.world_size > 1 and plan.backend != "none"


def _resumes_trainer_on_indexed_cpus(context: RunContext, plan: Plan) -> bool:
    script, accelerate = context.spec.project.script, context.env.packages.get("accelerate", "")
    is_trainer = script is not None and any(imported.module == "transformers" for imported in script.imports)
    is_resuming = bool(context.asked.checkpoint or context.asked.resumed)
    return is_trainer and is_resuming and _has_group(plan) and not before(accelerate, INDEXED_CPU)


def _may_multiply_loss(context: RunContext, plan: Plan) -> bool:
    script = context.spec.project.script
    is_set = any(SETTING in argument for argument in context.asked.argv)
    return script is not None and script.uses_trainer and _has_group(plan) and not is_set


LIBRARY_RULES: Final = (
    LibraryRule(
        "trl",
        lambda version: before(version, RESUMING_TRL),
        _resumes_trl,
        f"trl {{version}} ignores {RESUMES}: it would start over and overwrite the checkpoint",
        f"trl>={RESUMING_TRL}",
        refuses=True,
    ),
    LibraryRule(
        "trl",
        lambda version: before(version, RESUMING_TRL),
        lambda _, plan: is_of_trl(plan.asked) and bool(plan.asked.checkpoint),
        "trl {version} does not go on from a checkpoint: after a lost host, it starts over",
        f"trl>={RESUMING_TRL}",
    ),
    LibraryRule(  # ipexctl itself adds --dtype
        "trl",
        lambda version: before(version, DTYPE_TRL),
        lambda _, plan: is_of_trl(plan.asked) and "--dtype" in plan.command,
        "trl {version} does not know --dtype, which is --torch_dtype there",
        f"trl>={DTYPE_TRL}",
        refuses=True,
    ),
    LibraryRule(
        "transformers",
        lambda version: before(version, RESUMES_ON_CPU),
        _resumes_trainer_on_indexed_cpus,
        "the Trainer of transformers {version} cannot resume on several CPU ranks",
        f"transformers>={RESUMES_ON_CPU}",
    ),
    # With average_tokens_across_devices=True, `Trainer.compute_loss` multiplies each rank's loss by the number of
    # ranks. A model that takes num_items_in_batch by **kwargs and ignores it gets too large a loss.
    LibraryRule(
        "transformers",
        lambda version: not before(version, "4.54"),
        _may_multiply_loss,
        "transformers {version} multiplies loss and gradients by the number of ranks ({ranks}) if the model's forward "
        f"takes **kwargs and ignores num_items_in_batch; TrainingArguments({SETTING}=False) prevents that",
    ),
)


def library_notes(context: RunContext, plan: Plan) -> Iterator[str]:
    """Warn of what `LIBRARY_RULES` know of the installed versions. Raise a StartError for a rule that refuses."""
    for rule in LIBRARY_RULES:
        version = context.env.packages.get(rule.library, "")
        if not version or not rule.is_affected(version) or not rule.applies(context, plan):
            continue
        text = rule.text.format(version=version, ranks=plan.world_size)
        python = context.asked.python
        line = "`ipexctl install --with {needs}`" if python is None else "`{python} -m pip install {needs}`"
        fix = Fix(line, python=python, needs=rule.needs) if rule.needs else Fix("")
        if rule.refuses:
            raise StartError.because(text, fix, exit_code=2)
        yield Fix("{text}; {fix}", text=text, fix=fix) if rule.needs else text


def missing_notes(context: RunContext, plan: Plan) -> Iterator[str]:
    """Warn of a model or data set of the command line that hosts lack and cannot load from the hub."""
    hub = {host.name: context.hub[host.name] for host in plan.hosts if host.name in context.hub}
    for option, what, prefix in ((MODEL, "model", "hf:"), (DATA, "data set", "hf-dataset:")):
        name = context.options.get(option, "")
        is_id = is_repo_id(name)
        lacking = [host for host, found in hub.items() if name in found.lacking and (found.problem or not is_id)]
        if not lacking or (name.startswith("/") and any(name in word for word in context.asked.argv)):
            continue  # `path_checks.py` names a path of the line
        where = f"{name}, the {what} of the line, is neither in the project nor on {fold(lacking)}"
        project = context.spec.project
        source, then = real_path(project.root / project.subdirectory / name), ""
        if source.exists():
            target = str(PurePosixPath(context.home).parent / source.name)
            push, then = ipexctl_command("push", str(source), target), f"; then: --{option} {shlex.quote(target)}"
        elif is_id:
            where += f", which can't load it from the hub: {hub[lacking[0]].problem}"
            push = ipexctl_command("push", prefix + name)
            if option == DATA:
                then = f", and give the directory that it prints to --{DATA}; or make {name}/ in the project"
        else:
            yield f"{where}: the script fails if it does not make it"
            continue
        yield Fix("{where}; to bring it: {push}{then}", where=where, push=push, then=then)


def hiding_notes(context: RunContext, _: Plan) -> Iterator[str]:
    """Warn of files at the project's root that hide an installed package of the same name."""
    layout = context.spec.project.layout
    for package in _installed(context):
        module = package.replace("-", "_")
        for file in (f"{module}.py", f"{module}/__init__.py"):
            if (layout.root / file).is_file() and not layout.is_own(package):
                yield f"{file} in the project hides the installed package {package}"


def shell_notes(_: RunContext, plan: Plan) -> Iterator[str]:
    """Warn that the plan does not take the OMP_NUM_THREADS of the user's shell."""
    name = "OMP_NUM_THREADS"
    own = os.environ.get(name, "")
    if not own.isdecimal() or plan.asked.omp or name in {export.name for export in plan.asked.exports}:
        return
    if not {setting.value for setting in plan.settings if setting.name == name} <= {own}:
        yield f"{name}={own} of this shell does not reach the ranks; to use it: -x {name}, or --omp {own}"


Note = Callable[[RunContext, Plan], Iterable[str]]
PLAN_NOTES: Final[tuple[Note, ...]] = (copies_notes, lambda _, plan: plan.notes, accelerate_notes)
"""In `Plan.notes`. `copies_notes` also raises a StartError."""
DRY_RUN_NOTES: Final[tuple[Note, ...]] = (
    batch_notes,
    missing_notes,
    library_notes,
    hiding_notes,
    shell_notes,
)
BEFORE_START_NOTES: Final[tuple[Note, ...]] = (
    lambda context, plan: () if context.asked.is_exclusive else notes_on(plan.other_runs, time.time()),
    lambda context, _: context.notes,
    job_notes,
    restart_notes,
    *DRY_RUN_NOTES,
)
"""Not in a dry run, which shows `DRY_RUN_NOTES` alone. `library_notes` may raise a StartError."""
AFTER_START_NOTES: Final[tuple[Note, ...]] = (lambda _, plan: plan.notes, logind_notes)


def collect_notes(notes: Sequence[Note], context: RunContext, plan: Plan) -> Iterator[str]:
    """Yield the texts of all notes, in their order."""
    return (text for note in notes for text in note(context, plan))


# What is shown


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]


class ShownNotes:
    """Shows each note of a start once, and not again at the next start of this script with the same arguments."""

    def __init__(self, on_note: Callable[[str], None], spec: RunSpec) -> None:
        self._on_note, self._spec = on_note, spec
        self._digests = set[str]()
        """Digests of the notes of this call, shown or known."""
        self._shown_before = frozenset[str]()
        """Digests of the notes that the last start with these arguments has shown."""

    def show(self, text: str) -> None:
        """Show a note that this call and the last one have not shown. Its commands get the options of the call."""
        text = self._spec.options.apply(text)
        digest = _digest(text)
        if digest not in self._digests:
            self._digests.add(digest)
            if digest not in self._shown_before:
                self._on_note(text)

    def remember(self) -> Callable[[], None]:
        """Skip the notes that the last start with these arguments has shown. Return a function that records the notes
        of this call; a note that is gone at one start is new when it comes back."""
        asked, root = self._spec.asked, str(self._spec.project.root)
        this_call = _digest(repr((asked.argv, asked.exports)))
        lines = map(str.split, _SHOWN_NOTES.text_of(root).splitlines())
        digests_of_calls = {call: frozenset(digests) for call, *digests in lines}
        self._shown_before = digests_of_calls.pop(this_call, frozenset())

        def record() -> None:
            if self._digests == self._shown_before:
                return
            newest_calls = dict(list(digests_of_calls.items())[-_MOST_CALLS_REMEMBERED:])
            kept = {**newest_calls, this_call: self._digests}
            _SHOWN_NOTES.add([root], "\n".join(" ".join((call, *sorted(digests))) for call, digests in kept.items()))

        return record
