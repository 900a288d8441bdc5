"""Keep a record of each run on the control machine, so that `logs` or `stop` know how to reach its node0.

A record is two files of mode 0600, written before the first rank starts: ID.json, and the plan in ID/plan.json. Node0
keeps the status, so a record never says whether a run is alive. A damaged file affects only its own run.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import UserError, place_fix
from ipexctl.homes.pending import remove_record, runs_directory
from ipexctl.hosts.host import Host
from ipexctl.launch.run_declarations import call_of
from ipexctl.node.common.answer import Json
from ipexctl.node.common.files import make_private_directory, write_atomically
from ipexctl.node.common.fix import Fix, FixCommand, ipexctl_command
from ipexctl.node.common.json_records import PRIVATE, as_object, check_type, decode, decode_natural, read_json_file
from ipexctl.node.common.owners import is_made_by, owner_text
from ipexctl.node.common.plan import PLAN_FILE, Plan, plan_text, read_outline
from ipexctl.node.common.run_options import RunOptions
from ipexctl.option_declaration import CONNECT_SECONDS, NO_OPTIONS, NOT_TYPED, CallOptions, TypedCall
from ipexctl.remote.caller import caller_here
from ipexctl.remote.node_call import AgentPlace
from ipexctl.text import expand_tilde
from ipexctl.transports import Transport, transport_named

if TYPE_CHECKING:
    from ipexctl.launch.run_context import RunContext
    from ipexctl.remote.connector import ConnectOptions

SCHEMA: Final = "ipexctl.record/1"
_LAST_SEQUENCE: Final = "last-sequence"
LAST: Final = ("last", "last:all")
_NOT_IN_IDS: Final = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True)
class RunRecord:
    id: str
    node0: Host
    home: str
    python: str
    source: Plan | Path
    """The plan, or the path of its file."""
    started: float = 0.0
    """Seconds since the epoch, by the control machine's clock; only shown, because the clock may have been wrong."""
    sequence: int = field(default=0, compare=False)
    """The number of the run. It is larger than the number of each run that was saved before."""
    nodes: tuple[Host, ...] = ()
    host_keys: str | None = None
    connect_timeout: float = CONNECT_SECONDS
    transport_name: str = "ssh"
    project: str = ""
    options: CallOptions = NO_OPTIONS
    """Options that chose the hosts and the environment, for commands to type next."""
    typed: TypedCall = NOT_TYPED
    is_kept: bool = True
    """False for a run that was found on its hosts; nothing of such a run is written here."""

    @cached_property
    def plan(self) -> Plan:
        """The plan; one without hosts if the file is missing or damaged, so that the run can still be listed."""
        if not isinstance(self.source, Path):
            return self.source
        try:
            return read_outline(read_json_file(self.source))
        except (OSError, ValueError):
            return Plan(self.id, self.home, self.node0.name, RunOptions())

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts with files of the run; empty if its plan is missing."""
        return self.plan.names if self.plan.hosts else ()

    @property
    def leaders(self) -> tuple[str, ...]:
        """One host for each home with files of the run."""
        return (self.node0.name,) if not self.plan.hosts else self.plan.leaders

    @property
    def call_options(self) -> CallOptions:
        """The options that chose the run's hosts, with the call that began it, to print commands like it."""
        return CallOptions(
            self.options.hosts,
            self.options.run,
            call=self.typed if self.typed.directory else call_of(self.plan.asked),
            program=self.plan.asked.program,
        )

    @property
    def is_own(self) -> bool:
        """True if the records here have the run, or if the run names them."""
        return self.is_kept or RunRegistry().has(self.id) or is_made_by(self.plan.by, caller_here().records)

    def call_text(self, text: str) -> str:
        """Return a text in which commands about the run name its hosts, if the run was found on its hosts and has no
        record here. A text without commands stays as it is."""
        return text if self.is_kept or not isinstance(text, Fix) else text.with_commands(self._on_hosts)

    def _on_hosts(self, command: FixCommand) -> FixCommand:
        return self.options.about_run(command) if command.verb in _ABOUT_RUN else command

    @property
    def agent(self) -> AgentPlace:
        """Where the hosts have the agent, and which Python runs it."""
        return AgentPlace(self.python, self.home)

    @property
    def transport(self) -> Transport:
        """How the run's hosts are reached."""
        return transport_named(self.transport_name)

    @property
    def rundir(self) -> str:
        """The run's directory on its hosts."""
        return f"{self.home}/runs/{self.id}"

    @property
    def resume_command(self) -> str:
        """The command that resumes the run on the remaining hosts; empty if it can't be resumed."""
        return self.continue_command if len(self.hosts) > 1 else ""

    @property
    def continue_command(self) -> str:
        """The command that goes on from a checkpoint; empty if a scheduler chose the hosts, or if the record does not
        tell where the call was typed."""
        can_resume = self.typed.directory and not self.plan.job
        return Fix(f"`ipexctl run --resume {self.id}`") if can_resume else ""

    @property
    def gpu_command(self) -> str:
        """The command that starts the script again and says that there are GPUs."""
        again = ipexctl_command("run", "--gpu-code", "assume", argv=self.plan.asked.program)
        return self.call_options.apply(Fix("{again}", again=again))


_ABOUT_RUN: Final = frozenset(("attach", "fetch", "logs", "report", "stop", "wait", "why"))


def explain_foreign_run(record: RunRecord) -> str:
    """Return the sentence that says who began the run, and whether these are other records of the same account."""
    by = owner_text(record.plan.by)
    more = ", with other records than this call (another $HOME)" if by == owner_text(caller_here()) else ""
    return f"run {record.id} was begun by {by}{more}"


def new_record(context: RunContext, plan: Plan, connect: ConnectOptions) -> RunRecord:
    """Return the record of a run that this call starts; nothing is written yet."""
    spec = context.spec
    options = CallOptions(spec.options.hosts, spec.options.run)
    record = record_of(plan, context.spec.nodes_of(plan), connect, options, time.time())
    return replace(record, project=str(spec.project.root), typed=spec.typed)


def record_of(
    plan: Plan, nodes: Sequence[Host], connect: ConnectOptions, options: CallOptions, started: float
) -> RunRecord:
    """Return the record of a run with this plan. `nodes`: its hosts, node0 first."""
    return RunRecord(
        *(plan.id, nodes[0], plan.home, plan.python, plan, started),
        nodes=tuple(nodes),
        host_keys=connect.host_keys,
        connect_timeout=connect.connect_timeout,
        transport_name=connect.transport.name,
        options=options,
    )


def stem_of(script: str) -> str:
    """Return the prefix of the ids of this script's runs."""
    return _NOT_IN_IDS.sub("_", Path(script).name.removesuffix(".py")).strip("_")[:24] or "run"


def new_id(script: str, now: float) -> str:
    """Make an id such as `train_digits-1120-132512-9f3a`: script, time and a random part."""
    return f"{stem_of(script)}-{time.strftime('%m%d-%H%M%S', time.localtime(now))}-{secrets.token_hex(2)}"


class UnreadableRecord(UserError):
    """The error for a damaged record, of which only the id of its run is known."""

    def __init__(self, file: Path, reason: str) -> None:
        self.id, self.path, self.reason, self.written = file.stem, file, reason, 0.0
        with contextlib.suppress(OSError):
            self.written = file.stat().st_mtime
        super().__init__(
            f"the record of run {self.id} can't be read: {file}: {reason}",
            fix=Fix(
                "without its record the run cannot be stopped or fetched from this machine; find its processes: "
                "`ipexctl doctor`; once it has ended: `mv {path} {path}.damaged`",
                path=str(file),
            ),
        )


class RunRegistry:
    def __init__(self, directory: Path | None = None) -> None:
        self._given = directory

    @property
    def directory(self) -> Path:
        """The directory with the records, also if it does not exist yet."""
        if self._given is not None:
            return self._given
        return runs_directory()

    def save(self, record: RunRecord) -> None:
        """Write the record and its plan. Raises a UserError if they cannot be written: then the run must not start."""
        try:
            make_private_directory(self.directory)
            if isinstance(record.source, Plan):
                make_private_directory(self.directory / record.id)
                write_atomically(
                    self.directory / record.id / PLAN_FILE, plan_text(record.source).encode(), durable=False
                )
            numbered = replace(record, sequence=record.sequence or self._sequence_of(record.id))
            text = json.dumps(_to_json(numbered), indent=1)
            write_atomically(self.directory / f"{record.id}.json", text.encode(), durable=False)
        except OSError as error:
            raise UserError(
                f"{self.directory}: the record of the run can't be written: {error.strerror or error}",
                fix=place_fix(error, "set XDG_STATE_HOME to a directory that this account may write to"),
            ) from None

    def _sequence_of(self, run: str) -> int:
        """Return the number in the run's record; the next number if it has no record."""
        with contextlib.suppress(UnreadableRecord):
            return _read_record(self.directory / f"{run}.json").sequence
        number = self.last_sequence() + 1
        write_atomically(self.directory / _LAST_SEQUENCE, b"%d" % number, durable=False)
        return number

    def last_sequence(self) -> int:
        """Return the largest number that a run ever had. The number is kept in a file of its own, so it outlives the
        record of a failed start."""
        with contextlib.suppress(OSError, ValueError):
            return int(decode_natural(read_json_file(self.directory / _LAST_SEQUENCE), "the number"))
        return max((record.sequence for record in self.all()), default=0)

    def all(self) -> list[RunRecord]:
        """Return the records that can be read, in the order in which the runs were saved."""
        return self.read_records()[0]

    def read_records(self, names: str = "*") -> tuple[list[RunRecord], list[UnreadableRecord]]:
        """Return the records in the order in which the runs were saved, and the damaged ones.

        `names`: a pattern for ids.
        """
        records, damaged = list[RunRecord](), list[UnreadableRecord]()
        with contextlib.suppress(OSError):
            for path in sorted(self.directory.glob(f"{names}.json")):
                try:
                    record = _read_record(path)
                except UnreadableRecord as error:
                    damaged.append(error)
                else:
                    records += [record] if record.id == path.stem else []
        return sorted(records, key=lambda record: (record.sequence, record.started, record.id)), damaged

    def get(self, run: str) -> RunRecord | None:
        """Return the record with exactly this id; None if it is missing or can't be read."""
        with contextlib.suppress(UnreadableRecord):
            record = _read_record(self.directory / f"{run}.json")
            return record if record.id == run else None
        return None

    def node0_of(self, run: str) -> Host | None:
        """Return node0 of the run with exactly this id; None if it was not started from this machine."""
        record = self.get(run)
        return record.node0 if record is not None else None

    def has(self, run: str) -> bool:
        """True if there is a record of this run, damaged or not."""
        return (self.directory / f"{run}.json").is_file()

    def remove(self, run: str) -> None:
        """Remove the record of a run and its plan. A copy of its output stays."""
        remove_record(self.directory, run)


_NOT_KEPT: Final = ("source", "is_kept")
_HOST_FIELDS: Final = ("name", "address", "user", "port", "internal")
_HOST_PATHS: Final = ("identity", "known_hosts", "ssh_config")


def _to_json(record: RunRecord) -> Json:
    """Return the record as JSON, in which the plan is left to its own file."""
    values = {
        attribute.name: getattr(record, attribute.name)
        for attribute in fields(record)
        if attribute.name not in _NOT_KEPT
    }
    nodes = [_host_to_json(host) for host in record.nodes]
    values |= {
        "node0": _host_to_json(record.node0),
        "nodes": nodes,
        "options": {name: getattr(record.options, name) for name in ("hosts", "run")},
    }
    values["transport"] = values.pop("transport_name")
    return {"schema": SCHEMA, **values, "typed": record.typed._asdict()}


def _host_to_json(host: Host) -> dict[str, Any]:
    """Return the host as JSON. Paths are absolute, so that calls in other directories can use them."""
    paths: dict[str, Path | None] = {name: getattr(host, name) for name in _HOST_PATHS}
    return {
        **{name: getattr(host, name) for name in (*_HOST_FIELDS, "proxy")},
        **{name: None if path is None else str(expand_tilde(path).absolute()) for name, path in paths.items()},
    }


def _decode_host(value: object, field: str) -> Host:
    """Return the host of a record's JSON. Raises a ValueError if a field has the wrong type."""
    data = check_type(dict, value, field)
    known = {name: data.get(name) for name in (*_HOST_FIELDS, "proxy")}
    identity, known_hosts, ssh_config = (_decode_path(data.get(name), name) for name in _HOST_PATHS)
    return decode(
        Host,
        known,
        field,
        {"identity": identity, "known_hosts": known_hosts, "ssh_config": ssh_config, "shared": frozenset()},
    )


def _decode_path(value: object, field: str) -> Path | None:
    return Path(check_type(str, value, field)) if value else None


FIELD_DECODERS: Final = {"Host": _decode_host}


def _read_record(path: Path) -> RunRecord:
    """Return the record in a file. Raises an UnreadableRecord."""
    try:
        data = as_object(read_json_file(path))
        if data.get("schema") != SCHEMA:
            raise ValueError(f"its schema is {data.get('schema')!r}, not {SCHEMA!r}")
        data["transport_name"] = data.get("transport")
        return decode(RunRecord, data, "the record", {"source": path.with_suffix("") / PLAN_FILE})
    except (OSError, ValueError) as error:
        raise UnreadableRecord(path, getattr(error, "strerror", None) or str(error)) from None


_FAILED_CALL: Final = "failed-call"


@dataclass(frozen=True, slots=True)
class FailedCall:
    at: float
    script: str
    reason: str = ""
    fix: str = ""
    directory: str = ""
    sequence: int = field(default=0, metadata=PRIVATE)
    """`sequence` of the last run before this call."""
    line: str = ""
    """The line of `ipexctl run` as typed, if an install would let it run; else empty."""


def save_failed_call(directory: Path, failed: FailedCall) -> None:
    """Keep a call of `run` that started nothing. If the directory can't be written, nothing is raised, because only
    advice of `why` and `install` depends on the file."""
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(directory / _FAILED_CALL, json.dumps(asdict(failed)).encode(), durable=False)


def lacking_line(directory: str) -> str:
    """Return the last line of `ipexctl run` that an install would let run, if it was typed in this directory and no run
    has begun since; else empty."""
    registry = RunRegistry()
    failed = read_failed_call(registry.directory)
    is_last = failed is not None and failed.directory == directory and failed.sequence == registry.last_sequence()
    return failed.line if failed is not None and is_last else ""


def read_failed_call(directory: Path) -> FailedCall | None:
    """Return the last call of `run` that started nothing; None if there is none, or if its file is damaged."""
    try:
        return decode(FailedCall, read_json_file(directory / _FAILED_CALL), "the file")
    except (OSError, ValueError):
        return None
