"""One host's part of a checkpoint exchange: report its copies, send and receive files, put them in place.

A call that resumes a run asks with `find` what exists, and keeps it (`kept_checkpoint.py`). For an exchange, a rank
wrapper starts `PYTHON -I RUNDIR/agent.zip files.checkpoint` with a `CheckpointRequest` on stdin. It connects to the
supervisor (`common/authenticated_socket.py`), and the two take turns with one line of JSON each, which has a proof:

    {"rank"}
        → {"scan": true, "hosts": [name, …]}
    the report of the host (`checkpoint_report.py`)
        → {"exchange": a name, "serve": [copy, …], "clients": addresses of the hosts that fetch them,
           "receive": [copy, …], "runs": {name: the run that wrote it}, "remove": [name, …], "markers": [name, …],
           "known": {name: [sha256, is brought, number]}, "number": of this exchange, "parts": [directory, …]}
    {"port": of its file server, or null}, once nothing speaks against its part
        → {"fetch": [{"address", "port", "copies"}, …]}
    {"done": true, "aside": the directory with the files to remove, or empty}
        → {"end": true}, when all hosts are done

Instead of any of its lines the host may send {"failed": reason, "fix", "blamed": address of the host that it fetched
from, "changed": true if a line was not the supervisor's}. No token is sent: the hosts derive the token of their
file servers from the run's token and the name of the exchange. Files are received in HOME/checkpoints/KEY. Once all are
complete, the files to remove are set aside (`checkpoint_aside.py`) and the new ones put in place, markers last.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from ipexctl.node.common import authenticated_socket
from ipexctl.node.common.answer import FREE_SPACE_FIX, AgentError, Json, answer, explain_os_error, signs_of_life
from ipexctl.node.common.authenticated_socket import MALFORMED, ChangedLine, ConnectError, ProvenLines
from ipexctl.node.common.files import explain_full_disk, free_space, make_private_directory
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import parse_json
from ipexctl.node.common.node_limits import CHECKPOINT_STEP, LONGEST_READ, SIGN_OF_LIFE
from ipexctl.node.common.token_proof import CHECKPOINT_EXCHANGE, CHECKPOINT_FILES, derive_token
from ipexctl.node.files import store
from ipexctl.node.files.checkpoint_files import CheckpointFiles
from ipexctl.node.files.checkpoint_report import check_name, read_copies, read_known, read_runs
from ipexctl.node.files.earlier_files import LookRequest, look
from ipexctl.node.files.kept_checkpoint import keep_checkpoint
from ipexctl.node.files.peer_transfer import FileServer, connect
from ipexctl.node.files.place import CONTENT

if TYPE_CHECKING:
    from ipexctl.node.files.call_requests import ConnectRequest, ServeRequest, StoreFile
    from ipexctl.node.files.manifest import ManifestEntry

PATIENCE = 60.0
"""Seconds to reach the supervisor while strangers fill its port."""


class CheckpointRequest(NamedTuple):
    rank: int
    run: str
    path: str
    home: str
    address: str
    port: int
    token: str
    project: str = ""
    """Working directory of the ranks if a project's file set the path: fewer links may then lead to it."""
    tree: str = ""
    """Project tree that a relative path is in, a name below HOME/code."""


class Exchange:
    def __init__(self, files: CheckpointFiles, lines: ProvenLines, token: str, run: str) -> None:
        self._files, self._lines, self._token, self._run = files, lines, token, run
        self._source = ""
        self._stop_serving = -1

    def run(self) -> None:
        """Run the exchange. Connection errors are raised, others sent to the supervisor."""
        files = self._files
        try:
            hosts = self._receive()["hosts"]  # from here on, the supervisor knows this host
            files.clear()
            make_private_directory(os.path.dirname(files.directory))
            make_private_directory(files.directory)
            self._steps([str(host) for host in hosts])
        except ChangedLine as changed:
            self._lines.send({"failed": str(changed), "changed": True})
        except AgentError as error:
            self._lines.send({"failed": error.reason, "fix": error.fix, "blamed": self._source})
        except ConnectionError:
            raise
        except OSError as error:
            explained = explain_os_error(error, files.directory)
            self._lines.send({"failed": explained.reason, "fix": explained.fix})
        finally:
            if self._stop_serving >= 0:
                os.close(self._stop_serving)
            files.clear()
            files.close()

    def _steps(self, hosts: list[str]) -> None:
        files = self._files
        files.since = files.aside_files.put_back(files.top, hosts, files.make_directory, files.since)
        scanned = files.scan()
        self._lines.send(scanned.to_json())
        order = self._receive()
        exchange = str(order["exchange"])
        token = derive_token(self._token, CHECKPOINT_FILES, exchange)
        to_serve = list(read_copies(order["serve"], files.top).values())
        known = read_known(order["known"], files.top)
        received = list(read_copies(order["receive"], files.top).values())
        runs = read_runs(order["runs"], files.top)
        size = sum(copy.size for copy in received)
        if size > free_space(files.directory):
            fix = FREE_SPACE_FIX
            if not files.aside_files.is_empty():  # they fill the disk, so no exchange would succeed and remove them
                fix = Fix(
                    "`rm -r {aside}`  # files that earlier exchanges set aside; or free other space there",
                    aside=files.aside_files.path,
                )
            raise explain_full_disk(files.directory, size, fix)
        parts = [check_name(part, files.top) for part in order["parts"]]
        aside_files = {check_name(name, files.top) for name in order["remove"] if scanned.is_present(name)}
        files.check(received, aside_files)
        self._lines.send({"port": self._serve(to_serve, token, order["clients"]) if to_serve else None})
        for fetch in self._receive()["fetch"]:
            self._fetch(fetch, list(read_copies(fetch["copies"], files.top).values()), token)
        markers = frozenset(order["markers"])
        if aside_files:
            files.aside_files.prepare(exchange)
        files.remove(aside_files, runs)
        files.place(sorted(received, key=lambda copy: copy.path in markers))
        files.adopt({name: run for name, run in runs.items() if run != self._run})
        files.save(known, int(order["number"]))
        files.aside_files.note_parts(parts, hosts, files.since)
        self._lines.send({"done": True, "aside": files.aside_files.path if files.aside_files.is_used else ""})
        # The other hosts may still fetch from this one. If one fails, the connection ends.
        if self._receive().get("end"):
            files.aside_files.end()

    def _receive(self) -> Any:
        return self._lines.receive(CHECKPOINT_STEP)

    def _serve(self, copies: list[ManifestEntry], token: str, clients: list[str]) -> int:
        by_hash = {copy.content: copy for copy in copies}
        request: ServeRequest = {
            "store": self._files.directory,
            "files": _as_store_files(copies),
            "bind": self._lines.conn.getsockname()[0],
            "token": token,
            "clients": len(clients),
            "addresses": clients,
            "idle": CHECKPOINT_STEP,
        }
        server = FileServer(request, lambda sha256: cast("BinaryIO", self._files.open_copy(by_hash[sha256])))
        user, self._stop_serving = os.pipe()
        threading.Thread(target=server.run, args=(user,), daemon=True).start()
        return server.port

    def _fetch(self, fetch: Json, copies: list[ManifestEntry], token: str) -> None:
        self._source = fetch["address"]
        request: ConnectRequest = {
            "store": self._files.inbox,
            "files": _as_store_files(copies),
            "address": fetch["address"],
            "port": fetch["port"],
            "token": token,
        }
        failed = connect(request, lambda *_, **__: None)["failed"]
        if failed:
            raise AgentError(f"a file changed while it was sent: {failed[0]['reason']}")


def _as_store_files(copies: list[ManifestEntry]) -> list[StoreFile]:
    sizes = {copy.content: copy.size for copy in copies}
    return [{"sha256": sha256, "name": CONTENT, "size": size} for sha256, size in sizes.items()]


def find(request: Json, _: BinaryIO) -> Json:
    """Keep the checkpoint that a resumed run may load, and report the copies at the path, without hashes.

    With an empty path, there is no exchange to come, and nothing is reported.
    """
    with signs_of_life(SIGN_OF_LIFE, LONGEST_READ):
        kept = keep_checkpoint(request["keep"])
    if not request["path"]:
        return {"kept": kept}
    run = request["keep"]["resumed"][-1]
    with contextlib.closing(CheckpointFiles(request["path"], request["home"], tree=request["tree"], run=run)) as files:
        report = files.scan(has_hashes=False)
        return {"kept": kept, "report": (files.forget_changed(report) if kept.replaced else report).to_json()}


def look_for_earlier(request: Json, _: BinaryIO) -> Json:
    """Return which files of earlier runs a new run may overwrite (`earlier_files.py`)."""
    with signs_of_life(SIGN_OF_LIFE, LONGEST_READ):
        return {"earlier": [earlier._asdict() for earlier in look(cast("LookRequest", request))]}


def main(action: str) -> int:
    """Answer the agent's call `find` or `look`; without an action, take part in an exchange. Returns the exit code.

    It is 1 if the supervisor can't be reached, or the connection to it breaks; stderr then says why. What fails in the
    exchange itself, the supervisor is told.
    """
    if action:
        return answer({"find": find, "look": look_for_earlier}[action])
    request = CheckpointRequest(**parse_json(sys.stdin.readline()))
    store.end_on_signals()
    peer = f"{request.address} port {request.port}"
    try:
        lines = authenticated_socket.connect(
            request.address, request.port, request.token, CHECKPOINT_EXCHANGE, patience=PATIENCE
        )
        with lines.conn:
            lines.send({"rank": request.rank})
            files = CheckpointFiles(request.path, request.home, request.project, request.tree, request.run)
            Exchange(files, lines, request.token, request.run).run()
    except ConnectError as error:
        sys.stderr.write(f"no connection to the supervisor at {peer}: {error}\n")
        return 1
    except (OSError, *MALFORMED) as error:
        reason = getattr(error, "strerror", None) or str(error)
        sys.stderr.write(f"the connection to the supervisor at {peer} was lost: {reason}\n")
        return 1
    return 0
