"""Download repositories for `ipexctl push hf:…` on the one machine that reaches the hub, and offer them to other hosts.

- `download` uses huggingface_hub of an environment. It runs in a forked process that ends with this one. Only that
  process has the token in its environment.
- huggingface_hub compares no hash. So each file is hashed here and compared with its name in `blobs`, which is the hash
  in the hub's list. A file that differs is downloaded again, once.
- The hub chooses names of files and hashes. None may lead out of the repository's directory.
- `offer` links files of the cache into a store of its own, from which other hosts fetch them (`peer_transfer.py`),
  until its stdin ends.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import multiprocessing
import os
import signal
import site
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Collection, Iterator, NamedTuple, TypedDict

from ipexctl.node.common.answer import SIGNALS, Action, AgentError, answer_until_stopped, emit, explain_os_error
from ipexctl.node.common.files import HomeRequest, disk_usage, explain_full_disk, free_space, write_atomically
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.guarded_directory import GuardedDirectory, blocks_of, check_name
from ipexctl.node.common.home import home_of, make_home, open_home
from ipexctl.node.common.hub_cache import CACHE, COMMIT, HF_HOME, HUB, HUB_CACHE, folder_of, is_blob_name
from ipexctl.node.common.processes import end_with_parent
from ipexctl.node.common.token_proof import ready
from ipexctl.node.files import push
from ipexctl.node.files.call_replies import SnapshotReply
from ipexctl.node.files.file_stream import check_hash
from ipexctl.node.files.manifest import ManifestEntry, VerifiedBlobs, to_json
from ipexctl.node.files.place import CONTENT

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from ipexctl.node.common.answer import Json

_MOST_FILES = 100_000
"""Most files of a repository; a list may have no end."""
_WORKERS = 8
"""Files downloaded at once."""
_TRIES = 2
_TICK = 1.0
"""Seconds between two reports of progress."""
_TOO_MANY_REQUESTS = 429
_NOT_CONNECTED = ("ConnectError", "ConnectTimeout", "ProxyError", "NewConnectionError", "gaierror")
"""Errors of HTTP clients that got no connection."""
_CHUNK = 1 << 20
"""Bytes written at once; small, so that a download that was cut keeps nearly all that has arrived."""
_LONGEST_MESSAGE = 300
"""Characters of another program's message that an error has."""
_LATER = "run it again later; if it stays, tell those who keep the hub"
_KEPT = "the files that have arrived are kept: run it again"
_LOG_IN = "with a token of an account that may read it: read -rs HF_TOKEN; export HF_TOKEN; then the same call"


class WantedRepo(TypedDict):
    """A repository of the hub."""

    kind: str
    """`model` or `dataset`."""
    repo_id: str
    """`ORG/NAME`, or `NAME`."""
    revision: str
    """A branch, tag or commit."""


class HubDownloadRequest(HomeRequest):
    """Request to download repositories into the home's cache."""

    repos: list[WantedRepo]
    include: list[str]
    """Patterns of files; empty for all files."""
    endpoint: str
    """Address of the hub; empty for huggingface_hub's own."""
    token: str
    """Empty for this account's token, if it has one."""
    dry_run: bool


class _File(NamedTuple):
    """A file in the hub's list of a repository."""

    path: str
    size: int
    """Bytes."""
    blob: str
    """The file's hash, which is its name in `blobs`: sha256 of a large file, else git's sha1."""


class _Snapshot(NamedTuple):
    """The files of one commit of a repository."""

    commit: str
    files: list[_File]
    lacking: int
    """Bytes that the cache lacked before the download."""


Tell = Callable[[int], None]
"""Called with the bytes still to download."""


class _Library:
    """huggingface_hub, imported with the request's hub and token. Only the forked process may make one.

    Raises an AgentError if it can't be imported.
    """

    def __init__(self, request: HubDownloadRequest) -> None:
        os.environ.update(HF_HUB_OFFLINE="0", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_TELEMETRY="1")
        if request["endpoint"]:
            os.environ.update(HF_ENDPOINT=request["endpoint"], HF_HUB_DISABLE_XET="1")
        if request["token"]:
            os.environ["HF_TOKEN"] = request["token"]
        site.main()  # the agent starts without it
        try:
            self.hub: Any = importlib.import_module("huggingface_hub")
            self.utils: Any = importlib.import_module("huggingface_hub.utils")
            _adapt(importlib.import_module("huggingface_hub.file_download"))
        except ImportError as error:
            raise AgentError(
                f"huggingface_hub can't be imported on this machine: {error}", Fix("`ipexctl install`")
            ) from None
        self.endpoint = request["endpoint"] or HUB


def _adapt(file_download: Any) -> None:
    """Check the names in a hub's answer: huggingface_hub writes to a path made of them unchecked."""
    file_download.constants.DOWNLOAD_CHUNK_SIZE = _CHUNK
    get_metadata = file_download.get_hf_file_metadata

    def get_checked_metadata(*args: Any, **kwargs: Any) -> Any:
        metadata = get_metadata(*args, **kwargs)
        if metadata.etag is not None and not is_blob_name(metadata.etag):
            raise AgentError(f"the hub's ETag of a file is not a hash: {metadata.etag[:80]!r}")
        if metadata.commit_hash is not None and not COMMIT.fullmatch(metadata.commit_hash):
            raise AgentError(f"the hub names no commit of a file: {metadata.commit_hash[:80]!r}")
        return metadata

    file_download.get_hf_file_metadata = get_checked_metadata


def _fetch(request: HubDownloadRequest, wanted: WantedRepo, cache: Path, tell: Tell) -> _Snapshot:
    """List a repository and, unless it is a dry run, download what the cache lacks. Runs in the forked process.

    Raises an AgentError for every failure, of the hub, of the connection or of the disk.
    """
    library = _Library(request)
    try:
        commit, files = _list(library, request, wanted)
        blobs = cache / folder_of(wanted["kind"], wanted["repo_id"]) / "blobs"
        lacking = {file.blob: file.size for file in files if not (blobs / file.blob).exists()}
        snapshot = _Snapshot(commit, files, sum(lacking.values()))
        if request["dry_run"]:
            return snapshot
        tell(snapshot.lacking)
        if snapshot.lacking > free_space(str(cache)):
            raise explain_full_disk(str(cache), snapshot.lacking)
        library.hub.snapshot_download(
            wanted["repo_id"],
            repo_type=wanted["kind"],
            revision=commit,
            cache_dir=str(cache),
            allow_patterns=request["include"] or None,
            max_workers=_WORKERS,
        )
        return snapshot
    except AgentError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError) as error:  # huggingface_hub checks no types
        text = str(error)[:_LONGEST_MESSAGE]
        reason = f"the list of {wanted['repo_id']} from {library.endpoint} can't be read: {text}"
        raise AgentError(reason, _LATER) from None
    except Exception as error:  # noqa: BLE001  # of the HTTP client that this version of huggingface_hub uses
        raise _explain(error, library, wanted) from None


def _list(library: _Library, request: HubDownloadRequest, wanted: WantedRepo) -> tuple[str, list[_File]]:
    """Return the commit of the wanted revision, and its files that match the request's patterns.

    Raises an AgentError if none matches, or if the hub names a path or a hash that is none.
    """
    api, kind, name, patterns = library.hub.HfApi(), wanted["kind"], wanted["repo_id"], request["include"]
    answer_time = library.hub.constants.HF_HUB_ETAG_TIMEOUT  # otherwise it waits for a firewall
    info = api.repo_info(name, repo_type=kind, revision=wanted["revision"], timeout=answer_time)
    commit = str(info.sha)
    if not COMMIT.fullmatch(commit):
        raise AgentError(f"the hub names no commit of {name}: {commit[:80]!r}")
    rows = list(islice(api.list_repo_tree(name, recursive=True, revision=commit, repo_type=kind), _MOST_FILES + 1))
    if len(rows) > _MOST_FILES:
        raise AgentError(f"{library.endpoint} lists more than {_MOST_FILES:,} files of {name}", _LATER)
    entries = {entry.path: entry for entry in rows if hasattr(entry, "blob_id")}  # directories have none
    files = []
    for path in library.utils.filter_repo_objects(entries, allow_patterns=patterns or None):
        entry, lfs = entries[path], entries[path].lfs
        check_name(path)
        files.append(_File(path, int(entry.size), lfs.sha256 if lfs else entry.blob_id))
        if not is_blob_name(files[-1].blob):
            raise AgentError(f"the hub's name for {path} of {name} is not a hash: {files[-1].blob[:80]!r}")
    if not files:
        what = f" that matches {', '.join(patterns)}" if patterns else ""
        raise AgentError(f"{name} has no file{what}", "look at its files on the hub, then name others: --include GLOB")
    return commit, files


def _explain(error: Exception, library: _Library, wanted: WantedRepo) -> AgentError:
    """Return an error with the hub's or the connection's reason, and a fix that fits it."""
    name, endpoint = wanted["repo_id"], library.endpoint
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return explain_os_error(error)
    causes = list(_causes(error))
    kind_of_answer = library.utils.HfHubHTTPError
    answered: Any = next((cause for cause in causes if isinstance(cause, kind_of_answer)), None)
    response = getattr(answered, "response", None)
    if response is None:
        text = " ".join(str(error).split())[:_LONGEST_MESSAGE] or type(error).__name__
        reason = f"{name} can't be downloaded from {endpoint}: {text}"
        if not any(type(cause).__name__ in _NOT_CONNECTED for cause in causes):
            return AgentError(reason, _KEPT)
        return AgentError(
            f"{reason}: the hub can't be reached from there",
            Fix(
                "a machine that reaches it: --on HOST; a mirror: HF_ENDPOINT=URL; a proxy: "
                f"HTTPS_PROXY=URL; without any, on another machine: hf download {name} --local-dir {name}; "
                f"then: `ipexctl push {name} models/{name}`"
            ),
        )
    code, kind = response.status_code, response.headers.get("X-Error-Code", "")
    message = (
        getattr(answered, "server_message", None) or response.headers.get("X-Error-Message") or response.reason_phrase
    )
    reason = f"{endpoint} refuses {name} ({code}): {' '.join(str(message).split())[:_LONGEST_MESSAGE]}"
    page = f"{endpoint}/{'datasets/' if wanted['kind'] == 'dataset' else ''}{name}"
    if kind == "GatedRepo":
        return AgentError(reason, f"ask for access on {page}; {_LOG_IN}")
    if kind == "RevisionNotFound":
        return AgentError(f"{reason} (revision {wanted['revision']})", f"see the branches and tags on {page}")
    if code in (401, 403) or kind == "RepoNotFound":
        return AgentError(reason, f"is the name right: {page}? if it is private, {_LOG_IN}")
    if code == _TOO_MANY_REQUESTS:
        text = response.headers.get("Retry-After") or ""
        return AgentError(reason, f"wait {f'{text} s' if text.isdecimal() else 'some minutes'}; {_KEPT}")
    return AgentError(reason, _KEPT)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, the error that caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


def in_own_process(work: Callable[[Tell], _Snapshot], what: str, measure: Callable[[], int]) -> _Snapshot:
    """Do the work in a forked process, report progress meanwhile, and return its result.

    A signal that ends this process ends the other one, too. `what`: for the error if it ends without a result.
    `measure`: returns bytes on disk, of which those written since the start are the progress. Raises the AgentError
    that the work raised.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(work, sender))
    process.start()
    sender.close()
    before, total = measure(), 0
    try:
        while True:
            if receiver.poll(_TICK):
                message = receiver.recv()
                if isinstance(message, _Snapshot):
                    return message
                if isinstance(message, AgentError):
                    raise message
                total = message
            emit("progress", done=min(measure() - before, total), total=total)
    except EOFError:
        process.join()
        raise AgentError(f"the process of {what} ended with exit code {process.exitcode}", _KEPT) from None
    finally:
        process.kill()
        process.join()


def _send_result(work: Callable[[Tell], _Snapshot], sender: Connection) -> None:
    """Do the work and send its result or its AgentError to the parent. Runs in the forked process."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    end_with_parent(signal.SIGKILL)()
    try:
        sender.send(work(sender.send))
    except AgentError as error:
        sender.send(error)


class _Repo:
    """A repository in this home's cache, before and after its download."""

    def __init__(self, request: HubDownloadRequest, wanted: WantedRepo, cache: Path, verified: VerifiedBlobs) -> None:
        self._request, self._wanted, self._cache, self._verified = request, wanted, cache, verified
        self._folder = cache / folder_of(wanted["kind"], wanted["repo_id"])
        self._blobs = self._folder / "blobs"

    def bring(self) -> SnapshotReply:
        """Download what the cache lacks, check all files, and return the list of the snapshot's entries in the cache.

        A damaged file is removed and downloaded again. Raises an AgentError if a file is damaged twice.
        """
        name, downloaded = self._wanted["repo_id"], 0
        work = partial(_fetch, self._request, self._wanted, self._cache)
        for _ in range(_TRIES):
            snapshot = in_own_process(work, f"the download of {name}", lambda: disk_usage(self._cache))
            downloaded += snapshot.lacking
            damaged: list[_File] = []
            entries = self._entries(snapshot, damaged)
            if not damaged:
                packed = to_json(entries).decode()
                return SnapshotReply(self._folder.name, snapshot.commit, packed, len(snapshot.files), downloaded)
            for file in damaged:
                (self._blobs / file.blob).unlink()
        raise AgentError(
            f"{damaged[0].path} of {name}: the hub sends other bytes than its list has the hash of", _LATER
        )

    def _entries(self, snapshot: _Snapshot, damaged: list[_File]) -> list[ManifestEntry]:
        """Return the cache's entries of a snapshot: a symlink and a blob for each file, and what names the commit.

        Files whose hash is not their name are added to `damaged`. In a dry run nothing is read: sizes and hashes are
        the hub's, which has no sha256 of small files.
        """
        entries = []
        for file in snapshot.files:
            path, upward = f"snapshots/{snapshot.commit}/{file.path}", "../" * (file.path.count("/") + 2)
            entries.append(self._entry(path, "l", 0, f"{upward}blobs/{file.blob}"))
            if not self._request["dry_run"]:
                self._check_symlink(file, self._folder / path)
        for file in {file.blob: file for file in snapshot.files}.values():
            size, sha256 = file.size, file.blob if len(file.blob) == 64 else ""
            if not self._request["dry_run"]:
                size, sha256 = (self._blobs / file.blob).stat().st_size, self._sha256_of(file.blob)
                if not sha256:
                    damaged.append(file)
            entries.append(self._entry(f"blobs/{file.blob}", "f", size, sha256))
        if not damaged and not self._request["dry_run"]:
            self._verified.save()
            self._remove_unfinished({file.blob for file in snapshot.files})
            entries += self._name_entries(snapshot.commit)
        return entries

    def _check_symlink(self, file: _File, pointer: Path) -> None:
        """Refuse a file that huggingface_hub did not link to the blob that the list names."""
        if not pointer.is_symlink():
            reason = f"{self._cache} is on a filesystem without symbolic links"
            raise AgentError(reason, "name a directory on another: --home DIR")
        if (blob := Path(os.readlink(pointer)).name) != file.blob:
            name = self._wanted["repo_id"]
            raise AgentError(f"the hub names {file.path} of {name} by two hashes: {blob[:80]!r}, {file.blob}")

    def _name_entries(self, commit: str) -> Iterator[ManifestEntry]:
        """Write which commit the revision is, and yield that file and huggingface_hub's list of files, if they exist.

        `snapshot_download` gets the commit, so it does not write `refs/main` itself.
        """
        revision = self._wanted["revision"]
        ref = self._folder / "refs" / revision
        if revision != commit:
            ref.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(ref, commit.encode())
        for name in (f"refs/{revision}", f"trees/{commit}.json"):
            if (self._folder / name).is_file():
                data = (self._folder / name).read_bytes()
                yield self._entry(name, "f", len(data), hashlib.sha256(data).hexdigest())

    def _remove_unfinished(self, blobs: Collection[str]) -> None:
        """Remove what killed downloads of these blobs left; each download has a file of its own name."""
        for path in self._blobs.iterdir():
            if path.suffix == ".incomplete" and path.name.partition(".")[0] in blobs:
                path.unlink(missing_ok=True)

    def _sha256_of(self, name: str) -> str:
        """Return the sha256 of a blob; empty if its bytes do not have the hash in its name.

        Xet may link a blob to one in its shared cache. Raises an AgentError if the link leads out of this cache.
        """
        blob, row = self._blobs / name, f"{HUB_CACHE}/{self._folder.name}/blobs/{name}"
        real = blob.resolve()
        if self._cache not in real.parents:
            raise AgentError(f"{blob} leads out of the cache", "look at it, then move it away")
        known = self._verified.sha256_of(row)
        if known is not None and (known == name or len(name) == 40):
            return known
        with real.open("rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            digests = [hashlib.sha256()]
            if len(name) == 40:
                digests.append(hashlib.sha1(b"blob %d\0" % before.st_size))  # noqa: S324 - git's name of a file
            for block in blocks_of(file):
                for digest in digests:
                    digest.update(block)
            if digests[-1].hexdigest() != name:
                return ""
            self._verified.add(row, digests[0].hexdigest(), file.fileno(), before)
            return digests[0].hexdigest()

    def _entry(self, path: str, kind: str, size: int, content: str) -> ManifestEntry:
        """Return an entry below the repository's directory. `content`: a file's sha256, or where a symlink leads."""
        mode = 0o777 if kind == "l" else 0o644
        return ManifestEntry(f"{self._folder.name}/{path}", kind, mode, size, content)  # type: ignore[arg-type]


def download(request: HubDownloadRequest, _: BinaryIO) -> Json:
    """Download the repositories one after the other; return `snapshots`, a `SnapshotReply` for each."""
    home = home_of(request, f"{CACHE}/any")
    make_home(home)
    cache = Path(home).resolve() / CACHE
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    cache = cache.resolve()  # `hub` may be the user's link to a larger disk
    verified = VerifiedBlobs((Path(home) / HF_HOME).resolve())
    return {"snapshots": [_Repo(request, wanted, cache, verified).bring() for wanted in request["repos"]]}


_SIGN_OF_LIFE = 300.0
"""Seconds between events of a waiting call: one that is silent for an hour counts as hung."""


class OfferRequest(HomeRequest):
    """Request to offer files of the cache to other hosts."""

    files: list[list[str]]
    """Pairs of a file's sha256 and its path in the cache."""


def offer(request: OfferRequest, stdin: BinaryIO) -> dict[str, str]:
    """Link files of the cache into a store that only this call uses; remove the store when stdin ends.

    The event `offered` names the store. Until the end, an event `alive` comes every `_SIGN_OF_LIFE` seconds.
    """
    home = home_of(request, CACHE)
    top = str((Path(home) / HF_HOME).resolve())  # `hub` may be the user's link to a larger disk
    open_home(home)
    name = push.own_directory(f"{top}/{os.urandom(8).hex()}")
    with GuardedDirectory.open(top) as above:
        push.remove_abandoned(above)
        os.mkdir(name, 0o700, dir_fd=above.number)
        with push.enter_own(above, name) as own:
            try:
                for sha256, path in request["files"]:
                    check_name(path)
                    with own.enter(f"{push.STORE}/{check_hash(sha256)}".encode(), make=True, mode=0o700) as directory:
                        directory.link_to(os.fsencode(f"{top}/{HUB_CACHE}/{path}"), CONTENT.encode())
                emit("offered", store=f"{own.path}/{push.STORE}")
                while not ready([stdin.fileno()], [], _SIGN_OF_LIFE)[0]:
                    emit("alive")
            finally:
                push.clean_up(above, own, name)
    return {}


def main(action: str) -> int:
    """Answer a call of `hub.hub_download`: download repositories, or offer them to other hosts."""
    actions: dict[str, Action] = {"download": download, "offer": offer}
    return answer_until_stopped(actions[action])
