"""Removes what `ipexctl trust` of earlier versions left: node0's key and ssh config in its home, and one line in the
authorized_keys of each home. Each step is a script in `trust/scripts/` and one round trip. The scripts are for sh, so
that no Python is needed. Nothing else in these files changes.
"""

from __future__ import annotations

import hashlib
import io
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from ipexctl.errors import UserError
from ipexctl.hosts.host import Host, check_user, find_leaders
from ipexctl.node.common.fix import Fix
from ipexctl.option_declaration import DEFAULT_HOME
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command, ScriptError, script_error
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.home_script import home_functions, home_refusal
from ipexctl.remote.outcome import HostError, HostResult, Report
from ipexctl.remote.reply import MalformedReply
from ipexctl.remote.session import Session, capture
from ipexctl.trust.authorized_keys import KeysEdit, Owner, is_public_key, remove_lines, tag_of

T = TypeVar("T")
_TRIES: Final = 4
_SCRIPTS: Final = Path(__file__).with_name("scripts")
_HEX: Final = frozenset({b"keys", b"config"})
"""Records whose values are in hex, because a file may have NUL bytes."""


@dataclass(frozen=True, slots=True)
class HostState:
    home: str
    ipexctl_home: str
    store: str
    keys: bytes | None
    """Content of authorized_keys; None if there is no file."""
    keys_problem: str = ""
    has_leftovers: bool = False
    """True if an interrupted call left files beside authorized_keys."""
    has_trust_dir: bool = False
    key: str = ""
    """The public key on node0; empty if it has none that is valid."""
    config: str = ""


def read_host_state(reply: bytes) -> HostState:
    """Parse the answer of probe.sh, which is untrusted. Pure."""
    values: dict[str, bytes] = {}
    for record in reply.split(b"\0")[:-1]:
        name, _, content = record.partition(b" ")
        if name in _HEX:
            try:
                content = bytes.fromhex(content.decode("ascii"))
            except ValueError:
                continue
        values.setdefault(name.decode(errors="replace"), content)
    if values.get("end") != b"ok" or not values.get("user"):
        raise MalformedReply("cut off", reply.decode(errors="replace"))

    def text(name: str) -> str:
        return values.get(name, b"").decode(errors="surrogateescape")

    try:
        check_user(text("user"))
    except UserError as error:
        raise MalformedReply(f"invalid account name: {error.message}", text("user")) from None
    key = " ".join(text("key").split()[:2])
    return HostState(
        home=text("home"),
        ipexctl_home=text("ipexctl_home").rstrip("/") or "/",
        store=text("store"),
        keys=values.get("keys"),
        keys_problem=text("keys.bad"),
        has_leftovers="litter" in values,
        has_trust_dir="dir" in values,
        key=key if is_public_key(key) else "",
        config=text("config"),
    )


def names_in(config: str) -> tuple[str, ...]:
    """The hosts of node0's ssh config."""
    blocks = (text.splitlines()[0].split()[1:] for text in re.split(r"(?m)^(?=Host )", config)[1:])
    return tuple(names[0] for names in blocks if names and names[0] != "*")


def keys_to_remove(state: HostState, owner: Owner) -> KeysEdit | None:
    tidy = KeysEdit(state.keys, state.keys, tidy=True) if state.has_leftovers and state.keys is not None else None
    return remove_lines(state.keys, owner) or tidy


@dataclass(frozen=True, slots=True)
class RevokeOptions:
    home: str = DEFAULT_HOME
    timeout: float | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RevokeReport(Report[HostResult]):
    dry_run: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _HostSteps:
    host: Host
    session: Session
    options: RevokeOptions
    cancel: Cancel

    def probe(self, *, is_node0: bool) -> HostState:
        names = ("directory", "probe") if is_node0 else ("probe",)
        return read_host_state(self._run(names, [self.options.home, "node0" if is_node0 else ""], "probe its keys"))

    def edit_keys(self, home: str, edit: KeysEdit) -> str:
        """Returns "done", "same", or "moved" if the file no longer has the old text."""
        digests = ["none" if text is None else hashlib.sha256(text).hexdigest() for text in (edit.old, edit.new)]
        args = [home, *digests, "rmdir" if edit.remove_directory else ""]
        reply = self._run(("lock", "replace_keys"), args, "edit authorized_keys", edit.new or b"")
        return reply.decode(errors="replace").strip()

    def remove_files(self, ipexctl_home: str) -> bool:
        args = [ipexctl_home, "default" if self.options.home == DEFAULT_HOME else ""]
        return self._run(("directory", "lock", "remove"), args, "remove key and config").strip() == b"done"

    def _run(self, names: Sequence[str], args: Sequence[str], label: str, stdin: bytes | None = None) -> bytes:
        command = trust_script(names, args, label)
        content = None if stdin is None else io.BytesIO(stdin)
        result = capture(self.session, command, stdin=content, timeout=self.options.timeout, cancel=self.cancel)
        if not result.ended.ok:
            error = script_error(result.stderr)
            if (refused := home_refusal(error.text, args[0])) is not None:
                raise refused
            raise HostError(error.text or f"could not {label}: {result.ended}", _fix_for(error))
        return result.stdout


def trust_script(names: Sequence[str], arguments: Sequence[str], label: str) -> Command:
    files = [_SCRIPTS / f"{name}.sh" for name in names]
    functions = home_functions() if "directory" in names else ""
    return Command.scripts(*files, arguments=arguments, label=label, functions=functions)


_FIXES: Final = {
    "no-sha256sum": "install coreutils there, then run it again",
    "owner": "to see its owner: ls -l there; if the owner is wrong, root can chown it",
    "read-only": "if it is not read-only on purpose, chmod u+w it there, then run it again",
}
"""Code of a script's error → fix."""


def _fix_for(error: ScriptError) -> str:
    if error.code is not None:
        return _FIXES.get(error.code, "")
    text = error.text.lower()
    for pattern, fix in (
        ("no space left", "free some space there, then run it again"),
        ("quota", "free some space there, then run it again"),
        ("read-only file system", "if dmesg there shows no errors of the disk, remount it for writing"),
        ("permission denied", "ask the owner of that directory for write permission"),
        ("operation not permitted", "to see whether it is immutable: lsattr there"),
    ):
        if pattern in text:
            return fix
    return ""


class _Revoke:
    def __init__(self, hosts: Sequence[Host], pool: SessionPool, options: RevokeOptions) -> None:
        self.hosts, self.node0, self.options = tuple(hosts), hosts[0], options
        self.errors: dict[str, HostError] = {}
        self.changes: dict[str, list[str]] = {host.name: [] for host in hosts}
        self.shared: dict[str, str] = {}
        """Host → the first host of its home, which edited the file."""
        self._pool, self._started = pool, time.monotonic()
        self._seconds = dict.fromkeys((host.name for host in hosts), 0.0)
        self.states = self.each(hosts, lambda steps: steps.probe(is_node0=steps.host == self.node0))

    def each(self, hosts: Sequence[Host], work: Callable[[_HostSteps], T]) -> dict[str, T]:
        """Run one step on many hosts at once; return the results of hosts that did not fail."""

        def run_step(host: Host, session: Session) -> T:
            return work(_HostSteps(host, session, self.options, self._pool.cancel))

        results: dict[str, T] = {}
        for outcome in self._pool.each(hosts, run_step):
            self._seconds[outcome.host.name] = time.monotonic() - self._started
            if outcome.error is not None:
                self.errors[outcome.host.name] = outcome.error
            elif outcome.result is not None:
                results[outcome.host.name] = outcome.result
        return results

    def edit_everywhere(self, owner: Owner) -> None:
        """Edit each home once, through its first host; the other hosts of the home check the result."""
        states = self.states
        leader_of = find_leaders(list(states), lambda name: (states[name].store, states[name].home))
        edits: dict[str, KeysEdit] = {}
        for name, state in states.items():
            if state.keys_problem:
                self.errors[name] = _keys_error(state)
            elif edit := keys_to_remove(state, owner):
                edits[name] = edit
        for is_first_wave in (True, False):
            hosts = [h for h in self.hosts if h.name in edits and (leader_of[h.name] == h.name) is is_first_wave]
            done = (
                {host.name: is_first_wave for host in hosts}
                if self.options.dry_run
                else self.each(hosts, lambda steps: self._edit(steps, edits[steps.host.name], owner))
            )
            for name, changed in done.items():
                if changed:
                    self.changes[name].append(edits[name].summary)
                elif leader_of[name] != name:
                    self.shared[name] = leader_of[name]

    def _edit(self, steps: _HostSteps, edit: KeysEdit | None, owner: Owner) -> bool:
        """Return True if the file changed. If another program changed it in the meantime, probe and plan again."""
        state = self.states[steps.host.name]
        for _ in range(_TRIES):
            if edit is None:
                return False
            result = steps.edit_keys(state.home, edit)
            if result != "moved":
                return result == "done" or edit.tidy
            state = steps.probe(is_node0=steps.host == self.node0)
            if state.keys_problem:
                raise _keys_error(state)
            edit = keys_to_remove(state, owner)
        raise HostError(
            "another program keeps changing ~/.ssh/authorized_keys",
            "find the program that writes to it, then run it again",
        )

    def remove_files(self, state: HostState) -> None:
        name = self.node0.name
        is_removed = self.options.dry_run or self.each(
            [self.node0], lambda steps: steps.remove_files(state.ipexctl_home)
        ).get(name)
        if is_removed:
            self.changes[name].append("key and config removed")

    def result(self, host: Host) -> HostResult:
        name = host.name
        error, changes = self.errors.get(name), self.changes[name]
        status = error.status if error else "changed" if changes else "ok"
        shared = f"shares the home of {self.shared[name]}" if name in self.shared else ""
        reason = error.reason if error else "; ".join(changes) or shared
        return HostResult(host, status, reason, error.fix if error else "", self._seconds[name])

    def report(self, notes: tuple[str, ...]) -> RevokeReport:
        seconds = time.monotonic() - self._started
        return RevokeReport(tuple(map(self.result, self.hosts)), seconds, self.options.dry_run, notes)


def revoke(hosts: Sequence[Host], pool: SessionPool, options: RevokeOptions) -> RevokeReport:
    """Remove the line from every home, and the files from node0, the first host."""
    work = _Revoke(hosts, pool, options)
    node0 = work.node0
    state = work.states.get(node0.name)
    owner = Owner(tag_of(node0.internal or node0.address, options.home), state.key if state else "")
    work.edit_everywhere(owner)
    if state is None or not state.has_trust_dir:
        return work.report(())
    work.remove_files(state)
    given = {host.name for host in hosts}
    elsewhere = [name for name in names_in(state.config) if name not in given]
    if not elsewhere:
        return work.report(())
    note = Fix(
        f"{', '.join(elsewhere)}: not among the hosts of this call, so the line in authorized_keys stays "
        "there; its private key is removed. To remove the line: `ipexctl trust --revoke` with all hosts"
    )
    return work.report((note,))


def _keys_error(state: HostState) -> HostError:
    return HostError(state.keys_problem, "repair it there, then run it again")
