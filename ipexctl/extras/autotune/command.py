"""`ipexctl autotune`: finds the fastest settings of a run by trials on its own hosts.

In comes the line of `run`; out come a table of candidates and the verdict. The plan of the call is made first, as by
`run --dry-run`, and the candidates from it; `search.py` decides which trial comes next, `trial.py`
runs it, and every trial is kept for `--resume`. The rules: nothing of a trial stays on the hosts; the project is not
touched, but for `ipexctl.toml` with --save; Ctrl-C ends the trial that runs and prints the best plan so far.
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
import shlex
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from ipexctl.cli.config_file import PROJECT_FILE
from ipexctl.cli.launch_options import LaunchLine, ScriptCommand, plan_or_exit, read_launch_call
from ipexctl.cli.options import command, flag, option
from ipexctl.errors import UserError
from ipexctl.option_declaration import declared
from ipexctl.spec import RankOptions
from ipexctl.text import tilde_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipexctl.extras.autotune.model import Settings, Space
    from ipexctl.extras.autotune.tuner import SearchResult
    from ipexctl.launch.plan import LaunchPlan
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.run.start.call import RunCall
    from ipexctl.run.start.pipeline import PlannedRun

SCHEMA: Final = "ipexctl.autotune/1"
_DURATION: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smh]?)")
_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_BUDGET: Final = "30m"
_OWN_WITH_VALUE: Final = ("--budget", "--only", "--allow-path", "--report")
_OWN_FLAGS: Final = ("--resume", "--save", "--dry-run", "--json", "--quiet", "-q")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of the search."""

    budget: str = option("--budget T", "Time for the search, such as 10m or 1h (default: {default}).", _BUDGET)
    only: str | None = option(
        "--only GROUPS", "Groups of settings to try: iface, bind, omp, openmp, backend, allocator, hugepages."
    )
    resume: bool = flag("--resume", "Go on with the search that was interrupted.")
    save: bool = flag("--save", "Write the settings into ipexctl.toml of the project if a gain is shown.")
    allow_path: list[str] | None = option(
        "--allow-path PATH", "Path outside the project that trials may write; repeatable."
    )
    report: Path | None = option("--report FILE", "Write one HTML page with the candidates and all trials to FILE.")
    dry_run: bool = flag("--dry-run", "Print the candidates and how many trials they take; start nothing.")


@command(cls=ScriptCommand, no_args_is_help=True, context_settings={"allow_interspersed_args": False})
def autotune_command(*, ctx: typer.Context, search: SearchOptions, line: LaunchLine) -> None:
    """Find the fastest settings of a run by short trials on its hosts.

    Each trial starts the script in a copy of the project that is removed
    afterwards, and is stopped after some seconds of training. The arguments of
    the script, the number of ranks and the batch size are never changed.

    \b
    Example: ipexctl autotune -H hostfile --budget 10m train.py --epochs 3
    """
    from ipexctl.cli.hosts import session_pool
    from ipexctl.extras.autotune.trial_cleanup import only_search
    from ipexctl.extras.autotune.trials_file import read_search
    from ipexctl.run.measured import directory_of

    output = line.output
    check_report(search.report, dry_run=search.dry_run)
    budget = read_duration(search.budget)
    only = read_groups(search.only)
    launch_call = read_launch_call(ctx, line)
    if not launch_call.spec.sync:
        raise UserError(
            "a trial needs a copy of the project of its own",
            fix="leave out --no-sync, or `sync = false` of ipexctl.toml",
        )
    for note in launch_call.notes:
        output.print_note(f"note: {note}")
    hosts = launch_call.hosts
    with session_pool(line.targets, output, hosts=hosts, quiet=output.quiet, node0s=hosts[:1]) as (pool, interrupt):
        pool.warm(hosts)
        planned = plan_or_exit(launch_call, output, pool, interrupt, run="RUN", schema=SCHEMA)
        space, plan_of = _space(launch_call, planned, only)
        _refuse_paths(launch_call, search.allow_path or (), pool)
        if search.dry_run:
            if search.resume:
                read_search(directory_of(launch_call.project.root), _key(launch_call, search))
            from ipexctl.extras.autotune.view import dry_run_json, show_dry_run

            output.print_report((space, budget), dry_run_json, show_dry_run)
            raise interrupt.or_exit(0)
        with only_search(directory_of(launch_call.project.root)):
            result = _run(launch_call, search, budget, space, line, pool)
        _report(launch_call, planned, plan_of, search, result, line)
    raise interrupt.or_exit(_exit_code(result))


def check_report(path: Path | None, *, dry_run: bool) -> None:
    """Raise a UserError, before the search, for a page that can't be written at its end."""
    from ipexctl.extras.report.page_file import check_file

    if path is not None and dry_run:
        raise UserError("--report is written at the end of a search", fix="leave out --report or --dry-run")
    if path is not None:
        check_file("--report", path)


def read_duration(text: str) -> float:
    """Seconds of `90`, `10m` or `1h`."""
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * _UNITS[found[2]] if found is not None else 0.0
    if not seconds:
        raise UserError(f"--budget {text!r} is no time", fix="a number of seconds, or such as 10m or 1h")
    return seconds


def read_groups(text: str | None) -> tuple[str, ...]:
    """The names of --only, in any order; empty for all."""
    from ipexctl.extras.autotune.candidates import GROUPS

    names = tuple(name.strip() for name in text.split(",")) if text is not None else ()
    for name in names:
        if name not in GROUPS:
            raise UserError(f"--only {name!r} is no group of settings", fix=f"one or more of {','.join(GROUPS)}")
    return names


def _space(
    call: RunCall, planned: PlannedRun, only: tuple[str, ...]
) -> tuple[Space, Callable[[Settings], LaunchPlan | None]]:
    from ipexctl.extras.autotune.apply import with_settings
    from ipexctl.extras.autotune.candidates import HostsOfSearch, space_of
    from ipexctl.facts.internal import addresses_among
    from ipexctl.refusal import Refusal
    from ipexctl.run.start.pipeline import make_plan
    from ipexctl.run.start.request import StartError

    context = planned.context

    @functools.cache
    def plan_of(settings: Settings) -> LaunchPlan | None:
        spec = with_settings(call.spec, settings)
        addresses = addresses_among(context.hosts, context.facts, spec.iface) if context.addresses else {}
        if isinstance(addresses, Refusal):
            return None
        try:
            return make_plan(replace(context, addresses=addresses), spec, call.project, "RUN")
        except StartError:
            return None

    return space_of(HostsOfSearch(context.hosts, context.facts, context.env, plan_of), only), plan_of


def _refuse_paths(call: RunCall, allowed: Sequence[str], pool: SessionPool) -> None:
    from ipexctl.extras.autotune.outside_paths import leading_out, paths_in, writable_paths

    arguments = call.spec.argv[1:]
    cwd = call.project.root / call.project.subdirectory
    relative = [path for path in leading_out(arguments, cwd, call.project.root) if path not in allowed]
    found = (*relative, *writable_paths(call.hosts, paths_in(arguments, allowed), pool))
    if found:
        raise UserError(
            f"trials could write {', '.join(found)}, which is outside the project",
            fix=f"give the script another path, such as one in the project; or allow it: --allow-path {found[0]}",
        )


def _run(
    call: RunCall, search: SearchOptions, budget: float, space: Space, line: LaunchLine, pool: SessionPool
) -> SearchResult:
    from ipexctl.extras.autotune import trials_file
    from ipexctl.extras.autotune.model import SearchLimits
    from ipexctl.extras.autotune.search import SearchState
    from ipexctl.extras.autotune.trial import TrialRunner
    from ipexctl.extras.autotune.trial_cleanup import remove_left_over
    from ipexctl.extras.autotune.tuner import ChangedSearch, replayed, run_search
    from ipexctl.extras.autotune.view import SearchView
    from ipexctl.run.measured import directory_of

    directory, key = directory_of(call.project.root), _key(call, search)
    limits = SearchLimits(budget)
    if search.resume:
        trials, done = trials_file.resume(directory, key)
        try:
            state = replayed(SearchState(space, limits, trials.header.seed), done)
        except ChangedSearch:
            raise UserError(
                "the hosts have changed since the search began: its candidates are others now",
                fix="leave out --resume, which begins a new search",
            ) from None
    else:
        seed = random.randrange(1 << 31)  # noqa: S311
        header = trials_file.SearchHeader(key, seed, " ".join(call.spec.argv)[:200], time.time())
        trials, done = trials_file.TrialsFile(directory, header), ()
        trials.begin()
        state = SearchState(space, limits, seed)
    for run in remove_left_over(call.hosts, call.spec.home, call.project.root, pool):
        line.output.print_note(f"note: trial {run} of a call that was killed is removed")
    runner = TrialRunner(call, pool)
    view = SearchView(line.output.print_note, budget, _unit(call))
    result = run_search(state, runner.run, trials, view.on_trial, done)
    if trials.error is not None:
        line.output.print_note(f"note: trials were not kept in {trials.path}: {trials.error.strerror}")
    return replace(result, failed_run=runner.failed_run)


def _key(call: RunCall, search: SearchOptions) -> str:
    """The hash of what decides about the candidates and their ratios."""
    spec = call.spec
    exports = [(export.name, "" if export.secret else export.value) for export in spec.exports]
    parts = (
        spec.kind,
        spec.argv,
        [(host.name, host.address, host.slots) for host in call.hosts],
        sorted(((name, getattr(spec, name)) for name in declared(RankOptions)), key=str),
        (spec.env, spec.python, spec.setup, spec.iface, spec.metric, exports),
        (search.budget, search.only),
    )
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _report(
    call: RunCall,
    planned: PlannedRun,
    plan_of: Callable[[Settings], LaunchPlan | None],
    search: SearchOptions,
    result: SearchResult,
    line: LaunchLine,
) -> None:
    from ipexctl.extras.autotune.view import result_json, show_result

    verdict, settings = result.progress.verdict, result.progress.best
    words = len(line.words or ())
    typed = run_call(sys.argv[1:], words, settings, is_module=line.module is not None)
    line.output.print_report(result, result_json, show_result, best=typed)
    if search.report is not None:
        _write_page(search.report, call, result, typed, line)
    if verdict is None or verdict.ending != "gain" or verdict.estimate is None:
        return
    best = plan_of(verdict.settings)
    if search.save and best is not None:
        _save(call, planned, best, result, line)


def _write_page(path: Path, call: RunCall, result: SearchResult, best: str, line: LaunchLine) -> None:
    from ipexctl.extras.autotune.page import search_html
    from ipexctl.extras.report.page_file import write_page

    write_page("--report", path, search_html(result, " ".join(call.spec.argv)[:200], best, _unit(call)))
    line.output.print_note(f"the page of the search: {path}")


def _unit(call: RunCall) -> str:
    return "samples/s" if call.spec.metric else "steps/s"


def run_call(words: Sequence[str], trailing: int, settings: Settings, *, is_module: bool) -> str:
    """The words of this call as a call of `run` with these settings. Pure.

    `trailing`: how many words belong to the script. Options that the settings replace are left out.
    """
    from ipexctl.extras.autotune.apply import options_of, words_of

    options, script = list(words[: len(words) - trailing]), list(words[len(words) - trailing :])
    if options[-1:] == ["--"]:
        script.insert(0, options.pop())
    if is_module:
        options, script = options[:-2], [*options[-2:], *script]
    left_out = (*_OWN_WITH_VALUE, *(f"--{name.replace('_', '-')}" for name in options_of(settings)))
    kept: list[str] = []
    while options:
        word = options.pop(0)
        name, equals, _ = word.partition("=")
        if name in left_out and not equals and options:
            options.pop(0)
        elif name not in (*left_out, *_OWN_FLAGS):
            kept.append(word)
    if "autotune" in kept:
        kept[kept.index("autotune")] = "run"
    return shlex.join(["ipexctl", *kept, *words_of(settings), *script])


def _save(call: RunCall, planned: PlannedRun, best: LaunchPlan, result: SearchResult, line: LaunchLine) -> None:
    from ipexctl.extras.autotune.save import with_result
    from ipexctl.extras.autotune.view import show_diff
    from ipexctl.node.common.files import write_atomically
    from ipexctl.refusal import Refusal
    from ipexctl.run import measured
    from ipexctl.ui.messages import print_refusal

    verdict = result.progress.verdict
    assert verdict is not None
    assert verdict.estimate is not None
    path, date = call.project.root / PROJECT_FILE, time.strftime("%Y-%m-%d")
    ratio, low, high, _ = verdict.estimate
    context = planned.context
    found = measured.Measured(
        date,
        ratio,
        low,
        high,
        verdict.settings,
        measured.fingerprint_of(
            best, context.facts, context.env.packages, measured.script_text(call.project, call.spec)
        ),
    )
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    text = with_result(before, verdict.settings, f"{date}: {ratio:.2f}x ({low:.2f} to {high:.2f})")
    if isinstance(text, Refusal):
        print_refusal(text.reason, text.fix)
        raise typer.Exit(1)
    if not line.output.json:
        show_diff(before, text, path.name)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    try:
        write_atomically(path.resolve(), text.encode(), mode=mode, is_of_user=True)
        measured.save(measured.directory_of(call.project.root), call.spec.script, found)
    except OSError as error:
        raise UserError(f"{tilde_path(path)} can't be written: {error.strerror}", fix="make room there") from None


def _exit_code(result: SearchResult) -> int:
    if result.error is not None:
        return result.error.exit_code
    verdict = result.progress.verdict
    return 1 if verdict is not None and verdict.ending == "baseline-failed" else 0
