"""Submits a run to Slurm: sends the project and ipexctl's package to the login node, then calls sbatch. Whatever would
fail in the job after hours of waiting is checked here. A run that Slurm refused leaves nothing. If the connection broke
at that moment, the record stays, and the run's directory on the cluster has the job's number.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.util
import io
import json
import os
import secrets
import shlex
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

from ipexctl.errors import UserError
from ipexctl.extras.slurm.queued import QUEUE
from ipexctl.extras.slurm.submit_script import BatchScript, QueueOptions, environment_text, words_of_run
from ipexctl.homes.pending import mark_pending
from ipexctl.homes.registry import RunRecord, RunRegistry, new_id, new_record
from ipexctl.launch.request import Gathered
from ipexctl.launch.spec import RunSpec
from ipexctl.limits import JOB_UPLOAD, PATHS_CHECK
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.plan import Plan
from ipexctl.remote.caller import identify_caller
from ipexctl.remote.command import Command
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.home_script import home_refusal, use_home_or_fail, walk_to
from ipexctl.remote.node_call import explain_stderr
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.session import CapturedOutput, capture
from ipexctl.run.start.begin import File, clean_up, packed
from ipexctl.run.start.pipeline import RunStart
from ipexctl.run.start.project import files_in_other_generations
from ipexctl.run.start.request import StartError, StartFailure
from ipexctl.run.start.watcher import StartWatcher
from ipexctl.sync.path_notes import note_secret_files

MODULES: Final = (
    *("ClusterShell", "annotated_doc", "click", "packaging", "pathspec", "platformdirs", "rich", "shellingham"),
    *("typer", "typing_extensions"),
)
"""Third-party modules. A module missing here is one that the installed versions do not need."""
_NEEDED: Final = frozenset(("typer", "rich", "platformdirs", "packaging"))
_OWN: Final = Path(__file__).parents[2]
_NOT_SENT: Final = ("lab",)
"""Parts of ipexctl that a job never calls."""
_NOT_CODE: Final = frozenset((".so", ".pyc", ".pyo", ".pyd", ".pyi"))


@functools.cache
def own_package() -> bytes:
    """ipexctl for a cluster that has none: a compressed tar archive; the same content gives the same bytes. Only pure
    Python modules. On the cluster, it is in HOME/agent and named like the copies of the agent, so that cleanup and
    uninstall find it.
    """
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, path in sorted(_files()):
            member = tarfile.TarInfo(name)
            content = path.read_bytes()
            member.size, member.mode = len(content), 0o600
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), compresslevel=6, mtime=0)


@functools.cache
def package_name() -> str:
    return hashlib.sha256(own_package()).hexdigest()[:16]


def _files() -> Iterator[tuple[str, Path]]:
    for path in _code_below(_OWN):
        relative = path.relative_to(_OWN)
        if relative.parts[0] not in _NOT_SENT:
            yield f"ipexctl/{relative.as_posix()}", path
    for module in MODULES:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            if module in _NEEDED:
                raise UserError(f"ipexctl's module {module} is not in files", fix="install ipexctl again")
            continue
        origin = Path(spec.origin)
        if origin.name != "__init__.py":
            yield origin.name, origin
            continue
        for path in _code_below(origin.parent):
            yield f"{module}/{path.relative_to(origin.parent).as_posix()}", path


def _code_below(directory: Path) -> Iterator[Path]:
    for path in directory.rglob("*"):
        if path.is_file() and path.suffix not in _NOT_CODE and "__pycache__" not in path.parts:
            yield path


PROGRAMS: Final = ("sbatch", "scontrol", "scancel", "srun")
_OWN_DISKS: Final = frozenset(
    ("ext2", "ext3", "ext4", "ext2/ext3", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "overlayfs")
)
"""File systems that nodes seldom share."""
_LEAST_PYTHON: Final = (3, 10)


class Submission:
    def __init__(self, spec: RunSpec, queue: QueueOptions, pool: SessionPool, watcher: StartWatcher) -> None:
        """The host of the spec is the login node."""
        self.spec, self.queue, self.pool, self.watcher = spec, queue, pool, watcher
        (self.login,) = spec.hosts
        of_login = replace(spec, asked=spec.asked._replace(iface=None))  # --iface is for the nodes of the job
        self.start = RunStart(of_login, pool, watcher)

    def plan(self) -> BatchScript | StartFailure:
        try:
            self.start.project.compare(lease=None)
            context = self._context(dry_run=True)
            self._check_programs(context)
            tree, _ = self.start.project.upload(context)
            return self._script("RUN", context, tree, "0" * 32)
        except StartError as error:
            return error.failure.with_call_options(self.spec.options)

    def submit(self) -> RunRecord | StartFailure:
        run, registry, unreached = new_id(self.spec.asked.script, time.time()), RunRegistry(), set[str]()
        project = self.start.project
        note_secret_files(self.spec.secret_files)
        try:
            with mark_pending(registry.directory, run, unreached), ExitStack() as undo:
                project.compare(lease=run)
                undo.callback(lambda: unreached.update(project.release()))
                context = self._context()
                has_package = self._check_programs(context)
                self.start.check_script(context, self.spec.hosts)
                tree, _ = project.upload(context)
                if self.spec.asked.sync and (
                    text := files_in_other_generations(tree, self.spec.project, registry.all())
                ):
                    self.watcher.on_note(text)
                if not has_package:
                    self._send_package(context.home)
                script = self._script(run, context, tree, secrets.token_hex(16))
                record = new_record(context, self._plan(script, context), self.pool.connector.options)
                record = replace(record, transport_name=QUEUE.name)
                registry.save(record)
                undo.callback(registry.remove, run)
                undo.callback(lambda: unreached.update(self._clean(f"rm -rf {shlex.quote(script.rundir)}")))
                try:
                    self._submit(script, record)
                except StartError as error:
                    if error.failure.is_unsure:
                        undo.pop_all()
                    raise
                undo.pop_all()
        except StartError as error:
            return error.failure.with_call_options(self.spec.options)
        return record

    def _clean(self, script: str) -> frozenset[str]:
        return clean_up(self.spec.hosts, script, self.pool)

    def _context(self, *, dry_run: bool = False) -> Gathered:
        context = self.start.gather(dry_run=dry_run)
        for text in context.notes:
            self.start.note(text)
        return context

    def _run(self, script: str, label: str, data: bytes | None = None, timeout: float = JOB_UPLOAD) -> CapturedOutput:
        try:
            stdin = None if data is None else io.BytesIO(data)
            command = Command(script, label)
            session = self.pool.session(self.login)
            return capture(session, command, stdin=stdin, timeout=timeout)
        except HostError as error:
            raise StartError(StartFailure.of_host(self.login.name, error)) from error

    def _check_programs(self, context: Gathered) -> bool:
        """True if the login host has ipexctl's package. Raises a StartError without Slurm or a Python that is new
        enough.
        """
        home, python = shlex.quote(context.home), shlex.quote(context.env.python)
        version = "import sys; print('python', *sys.version_info[:2])"
        package = f"{context.home}/agent/{package_name()}"
        script = (
            walk_to(package)
            + f"for name in {' '.join(PROGRAMS)}; do command -v $name >/dev/null 2>&1 || echo missing $name; done\n"
            f"{python} -I -c {shlex.quote(version)} 2>/dev/null\n"
            f'at={home}; [ -d "$at" ] || at=$(dirname "$at")\n'
            'echo disk $(findmnt -no FSTYPE -T "$at" 2>/dev/null || stat -f -c %T "$at" 2>/dev/null)\n'
            f"if [ -d {shlex.quote(package)}/ipexctl ]; then touch {shlex.quote(package)}; echo package; fi\n"
        )
        answer = self._run(script, "look for Slurm", timeout=PATHS_CHECK)
        found = [line.split() for line in answer.stdout.decode(errors="replace").splitlines() if line.strip()]
        if missing := [words[1] for words in found if words[0] == "missing"]:
            raise StartError(
                StartFailure(
                    f"{self.login.name}: {', '.join(missing)} is not on PATH for commands over ssh",
                    f"if Slurm is installed, add its directory to PATH in ~/.bashrc of {self.login.name}",
                    (self.login.name,),
                )
            )
        versions = [words[1:3] for words in found if words[0] == "python" and len(words) == 3]
        if context.env.is_installed and versions and tuple(map(int, versions[-1])) < _LEAST_PYTHON:
            raise StartError(
                StartFailure(
                    f"{self.login.name}: {context.env.python} is Python {'.'.join(versions[-1])}; the job needs 3.10",
                    Fix(
                        "`ipexctl install --python 3.11 --env py311` makes a newer environment, for submit --env py311"
                    ),
                    (self.login.name,),
                )
            )
        disk = next((words[1] for words in found if words[0] == "disk" and len(words) > 1), "")
        if disk in _OWN_DISKS and not self._is_home_shared(context.home):
            self.watcher.on_note(
                f"{context.home} is on {disk}, which is seldom shared: if the nodes don't share it, the job ends at "
                "once and says so; use --home DIR with a shared directory"
            )
        return any(words[0] == "package" for words in found)

    def _is_home_shared(self, home: str) -> bool:
        return any(
            record.transport.waits and (record.node0, record.home) == (self.login, home) and record.plan.world_size
            for record in RunRegistry().all()
        )

    def _send_package(self, home: str) -> None:
        name, fresh = package_name(), f".new-{secrets.token_hex(6)}"
        agent = shlex.quote(f"{home}/agent")
        self.watcher.on_step(f"{self.login.name}: ipexctl's own package for the job, {len(own_package()) / 1e6:.1f} MB")
        script = (
            f"{use_home_or_fail(home, 'agent')}umask 077; mkdir -p {agent} && cd {agent} && mkdir {fresh} || exit 1\n"
            f"if tar -xzpf - -C {fresh} && {{ mv -T {fresh} {name} 2>/dev/null || [ -d {name}/ipexctl ]; }}\n"
            f"then rm -rf {fresh}; else code=$?; rm -rf {fresh}; exit $code; fi"
        )
        answer = self._run(script, "send ipexctl's package", own_package(), timeout=600)
        if not answer.ended.ok:
            raise StartError(self._failure(answer, home, "ipexctl's package could not be sent"))

    def _script(self, run: str, context: Gathered, tree: str, nonce: str) -> BatchScript:
        return BatchScript(
            run=run,
            rundir=f"{context.home}/runs/{run}",
            python=context.env.python,
            package=f"{context.home}/agent/{package_name()}",
            workdir=str(PurePosixPath(tree) / self.spec.project.subdirectory),
            words=words_of_run(self.spec, self.spec.project.command, context.home, tree),
            options=self.queue,
            nonce=nonce,
        )

    def _plan(self, script: BatchScript, context: Gathered) -> Plan:
        """A plan without hosts and what depends on them: the job plans that part."""
        return Plan(
            script.run,
            context.home,
            self.login.name,
            self.spec.asked,
            python=context.env.python,
            env=context.env.name,
            cwd=script.workdir,
            job=context.job,
            by=identify_caller(os.environ),
        )

    def _submit(self, script: BatchScript, record: RunRecord) -> None:
        request = {"script": record.plan.script, "submitted": record.started, "python": record.python}
        texts = {
            "job.sh": script.text(),
            "nonce": f"{script.nonce}\n",
            "request.json": json.dumps({**request, "login": self.login.name}),
        }
        if self.queue.requeue:
            texts["requeue"] = ""
        if self.queue.no_kill:
            texts["no-kill"] = ""
        if self.spec.secrets:
            texts["env"] = environment_text(self.spec.secrets)
        files = packed([File(f"slurm/{name}", text.encode()) for name, text in texts.items()])
        rundir, job = shlex.quote(script.rundir), shlex.quote(f"{script.rundir}/slurm/job")
        line = (
            f"{use_home_or_fail(record.home, 'runs')}umask 077; mkdir -p {rundir} && tar -xpf - -C {rundir} || exit 1\n"
            f"sbatch --parsable {rundir}/slurm/job.sh >{job} || exit 2\ncat {job}"
        )
        try:
            answer = self._run(line, "submit the job", files)
        except StartError as error:
            if isinstance(error.__cause__, (Cancelled, TimedOut, Unreachable)):
                fix = Fix(
                    f"it may be in the queue; to see it: `ipexctl ps`; to take it out: `ipexctl stop {script.run}`"
                )
                failure = StartFailure(error.failure.reason, fix, error.failure.hosts, error.failure.exit_code, True)
                raise StartError(failure) from None
            raise
        if not answer.ended.ok:
            what = "Slurm did not accept the job" if answer.ended.code == 2 else "the job's files could not be written"
            raise StartError(self._failure(answer, record.home, what))

    def _failure(self, answer: CapturedOutput, home: str, what: str) -> StartFailure:
        lines = answer.stderr.decode(errors="replace").strip().splitlines()
        if lines and (refused := home_refusal(lines[-1], home)) is not None:
            return StartFailure.of_host(self.login.name, refused)
        if answer.ended.code == 2 and lines:
            errors = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines if "sbatch: " in line]
            reason = "; ".join(errors[:3]) or lines[-1]
            fix = "sinfo there shows the partitions and their limits, man sbatch the options for --sbatch"
        else:
            reason, fix = explain_stderr(answer.stderr)
        return StartFailure(f"{self.login.name}: {what}: {reason[:400] or answer.ended}", fix, (self.login.name,))
