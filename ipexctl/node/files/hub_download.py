"""The download of `ipexctl push hf:…`, on the one machine that reaches the hub, by its own huggingface_hub.

In comes a request with repositories, the endpoint and the token; out goes for each the list of its snapshot in the
cache of the home (`common/hub_cache.py`): paths, sizes, sha256. It runs with the Python of an environment that has
huggingface_hub, which knows the hub's protocol and the layout. Two things are done here: since 2026 huggingface_hub
begins a file anew in each process, so a large file is written to `blobs/HASH.incomplete`, by huggingface_hub's own
function, and continued by the next call; and huggingface_hub compares no hash, so each file is hashed and compared with
its name in `blobs`, which is the hash in the hub's list. A file that differs is removed and downloaded once more.

The rules: names from a hub lead nowhere but below the directory of the repository; the token is in memory alone. If the
control machine is gone, this process ends, since nobody reads its progress.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib
import os
import re
import resource
import site
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Callable, Collection, Iterator, Mapping, NamedTuple, Sequence, TypedDict
from urllib.parse import urlsplit

from ipexctl.node.common.answer import Action, AgentError, answer, emit_failure, explain_os_error
from ipexctl.node.common.clock import wait_until
from ipexctl.node.common.files import explain_full_disk, free_space, write_atomically
from ipexctl.node.common.guarded_directory import check_name
from ipexctl.node.common.home import home_of, make_home
from ipexctl.node.common.hub_cache import CACHE, COMMIT, HF_HOME, HUB, HUB_CACHE, folder_of, is_blob_name
from ipexctl.node.files import store
from ipexctl.node.files.manifest import ManifestEntry, to_json
from ipexctl.node.files.replies import DownloadReply, SnapshotReply
from ipexctl.node.files.verified_blobs import VerifiedBlobs

RESUMED_SIZE = 4 << 20
"""A file of this size is continued by a later call; a smaller one is begun anew."""
MOST_OVER_HTTP = 50 * 10**9
"""Bytes of a file that a hub gives only by Xet."""
_WORKERS = 8
_TRIES = 2
_TICK = 0.5
_LONGEST_WAIT = 300.0
"""Seconds that a hub may let a call wait in all."""
_UNKNOWN_WAIT = 30.0
"""Seconds to wait for a hub that does not say how long."""
_TOO_MANY = 429
_NOT_CONNECTED = ("ConnectError", "ConnectTimeout", "ProxyError", "NewConnectionError", "gaierror")
"""Errors of the HTTP clients without a connection."""
_CHUNK = 1 << 20
"""Bytes that are written at once: what a connection that breaks off loses."""
_MOST_SHOWN = 300
_MOST_ENTRIES = 500_000
_MOST_MEMORY = 4 << 30
_SILENCE = 120.0
_LEAST = 1 << 20
_LATER = "run it again later; if it stays, tell those who keep the hub"
_LOG_IN = "with a token of an account that may read it: read -rs HF_TOKEN; export HF_TOKEN; then the same call"


class WantedRepo(TypedDict):
    kind: str
    repo_id: str
    revision: str


class HubDownloadRequest(TypedDict):
    home: str
    repos: list[WantedRepo]
    include: list[str]
    """Patterns; if there are none, all files."""
    endpoint: str
    """Empty: huggingface_hub's own."""
    token: str
    """Empty: that of this account, if it has one."""
    dry_run: bool


class _Library:
    """huggingface_hub, imported with the settings of a request."""

    def __init__(self, request: HubDownloadRequest) -> None:
        self.sizes: dict[str, int] = {}
        """Blob → its bytes, in the lists of the hub."""
        os.environ.update(HF_HUB_OFFLINE="0", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_TELEMETRY="1")
        if request["endpoint"]:
            os.environ.update(HF_ENDPOINT=request["endpoint"], HF_HUB_DISABLE_XET="1")
        site.main()  # the agent starts without it
        try:
            self.hub: Any = importlib.import_module("huggingface_hub")
            self.files: Any = importlib.import_module("huggingface_hub.file_download")
            self.utils: Any = importlib.import_module("huggingface_hub.utils")
            self.hub.constants.DOWNLOAD_CHUNK_SIZE = _CHUNK
            _check_answers(self.files, self.sizes)
            _limit_sizes(self.files)
        except ImportError as error:
            raise AgentError(f"huggingface_hub can't be imported there: {error}", "ipexctl install") from None
        self.network_errors: tuple[type[Exception], ...] = (OSError, *_network_errors())
        self.endpoint = request["endpoint"] or HUB
        self.token: str | None = request["token"] or None
        self.api: Any = self.hub.HfApi(endpoint=request["endpoint"] or None, token=self.token)


def _check_answers(file_download: Any, sizes: Mapping[str, int]) -> None:
    """huggingface_hub writes to a path made of the names in a hub's answer about a file, as they come, and as many
    bytes as that answer has, for which there may be no room."""

    get_metadata = file_download.get_hf_file_metadata

    def checked(*args: Any, **kwargs: Any) -> Any:
        found = get_metadata(*args, **kwargs)
        if found.etag is not None and not is_blob_name(found.etag):
            raise AgentError(f"the hub names a file by no hash: {found.etag[:80]!r}")
        if found.commit_hash is not None and not COMMIT.fullmatch(found.commit_hash):
            raise AgentError(f"the hub names no commit of a file: {found.commit_hash[:80]!r}")
        listed = sizes.get(found.etag)
        if listed is not None and found.size is not None and found.size > listed:
            raise AgentError(f"the hub sends {found.size} bytes of a file that has {listed} in its list", _LATER)
        return found

    file_download.get_hf_file_metadata = checked


class _LimitedFile:
    """A file that refuses more bytes than are expected: huggingface_hub counts them when all have come."""

    def __init__(self, file: Any, end: int) -> None:
        self._file, self._end = file, end

    def write(self, data: bytes) -> int:
        if self._file.tell() + len(data) > self._end:
            raise AgentError("the hub sends more bytes of a file than it names", _LATER)
        written: int = self._file.write(data)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _limit_sizes(file_download: Any) -> None:
    """Without a limit, a hub that sends on and on fills the disk."""

    http_get = file_download.http_get

    def limited(url: str, temp_file: Any, *, resume_size: int = 0, **more: Any) -> None:
        size = more.get("expected_size")
        if size is not None:
            temp_file = _LimitedFile(temp_file, temp_file.tell() - resume_size + size)
        http_get(url, temp_file, resume_size=resume_size, **more)

    file_download.http_get = limited


def _network_errors() -> Iterator[type[Exception]]:
    """Those of the HTTP client that this version of huggingface_hub uses."""
    for module, name in (("httpx2", "HTTPError"), ("httpx", "HTTPError"), ("requests", "RequestException")):
        with contextlib.suppress(ImportError):
            yield getattr(importlib.import_module(module), name)


class _Progress:
    """Bytes of large files, reported also while nothing arrives: a hub may let a client wait for minutes."""

    def __init__(self) -> None:
        self._done = self.total = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._report, daemon=True).start()

    def add(self, size: int) -> None:
        with self._lock:
            self._done += size

    def _report(self) -> None:
        """It ends this process if the control machine is gone."""
        wait = threading.Event()
        while not wait.wait(_TICK):
            store.emit_or_end("progress", done=self._done, total=self.total)


class _Patience:
    """Ends this process if for `_SILENCE` seconds not `_LEAST` bytes have come: a hub may send one now and then."""

    def __init__(self, what: str, measure: Callable[[], int]) -> None:
        self._what, self._measure, self._over = what, measure, threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        began = self._measure()
        while not self._over.wait(_SILENCE):
            now = self._measure()
            if now - began < _LEAST:
                text = f"{self._what} hardly comes: less than {_LEAST >> 20} MB in {_SILENCE:g} s"
                emit_failure(AgentError(text, "what has arrived is kept: run it again"))
                os._exit(1)
            began = now


def _bytes_written() -> int:
    """By this process, to whatever file."""
    return int(re.findall(r"wchar: (\d+)", Path("/proc/self/io").read_text(encoding="ascii"))[0])


class _PartialBlob:
    """A large file on its way, as the file that huggingface_hub writes to; what it has is hashed once."""

    def __init__(self, file: BinaryIO, progress: _Progress) -> None:
        self._file, self._progress = file, progress
        self._hash = hashlib.sha256()
        file.seek(0)
        for block in iter(lambda: file.read(1 << 20), b""):
            self._hash.update(block)
            progress.add(len(block))

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: bytes) -> int:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        self._hash.update(data)
        self._progress.add(len(data))
        return len(data)

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, position: int) -> int:
        """To the beginning, by a client whose server does not continue a file."""
        if position != self._file.tell():
            self._progress.add(position - self._file.tell())
            self._hash = hashlib.sha256()
        return self._file.seek(position)

    def truncate(self) -> int:
        return self._file.truncate()

    def flush(self) -> None:
        """Nothing is buffered."""


class _File(NamedTuple):
    """A file of a snapshot, as the hub lists it."""

    path: str
    size: int
    blob: str


class _Repo:
    """One repository on its way."""

    def __init__(
        self, library: _Library, cache: Path, request: WantedRepo, include: Sequence[str], verified: VerifiedBlobs
    ) -> None:
        self._library, self._request, self._cache, self._verified = library, request, cache, verified
        self._kind, self._id = request["kind"], request["repo_id"]
        self._patterns = list(include) or None
        self._folder = cache / folder_of(self._kind, self._id)
        self.downloaded = self._listed = 0
        self.commit = ""

    def find(self) -> list[_File]:
        try:
            with _Patience(f"the list of {self._id}", lambda: self._listed * _LEAST):
                return self._find()
        except MemoryError:
            raise AgentError(f"the list of {self._id} does not fit into {_MOST_MEMORY >> 30} GB", _LATER) from None
        except (AttributeError, IndexError, KeyError, TypeError) as error:  # huggingface_hub checks no types
            reason = f"the list of {self._id} from {self._library.endpoint} can't be read: {str(error)[:_MOST_SHOWN]}"
            raise AgentError(reason, _LATER) from None

    def _find(self) -> list[_File]:
        api, kind = self._library.api, self._kind
        answer_time = self._library.hub.constants.HF_HUB_ETAG_TIMEOUT  # without it, a firewall is waited for
        info = api.repo_info(self._id, repo_type=kind, revision=self._request["revision"], timeout=answer_time)
        self.commit = str(info.sha)
        if not COMMIT.fullmatch(self.commit):
            raise AgentError(f"the hub names no commit of {self._id}: {self.commit[:80]!r}")
        listed = api.list_repo_tree(self._id, recursive=True, revision=self.commit, repo_type=kind)
        found = {}
        for self._listed, entry in enumerate(listed, 1):
            if self._listed > _MOST_ENTRIES:
                raise AgentError(f"the list of {self._id} has more than {_MOST_ENTRIES:,} entries", _LATER)
            if hasattr(entry, "blob_id"):
                found[entry.path] = entry
        files = []
        for path in self._library.utils.filter_repo_objects(found, allow_patterns=self._patterns):
            entry, lfs = found[path], found[path].lfs
            check_name(path)
            files.append(_File(path, int(entry.size), lfs.sha256 if lfs else entry.blob_id))
            if not is_blob_name(files[-1].blob):
                raise AgentError(f"the hub names {path} of {self._id} by no hash: {files[-1].blob[:80]!r}")
            if files[-1].size < 0:
                raise AgentError(f"the hub names no size of {path} of {self._id}: {files[-1].size}", _LATER)
        self._library.sizes.update({file.blob: file.size for file in files})
        if not files:
            what = f" that matches {', '.join(self._patterns)}" if self._patterns else ""
            raise AgentError(
                f"{self._id} has no file{what}", "look at its files on the hub, then name others: --include GLOB"
            )
        return files

    def lacking(self, files: Sequence[_File]) -> list[_File]:
        """One file for each blob that is not there."""
        return list({file.blob: file for file in files if not (self._folder / "blobs" / file.blob).exists()}.values())

    def download(self, files: Sequence[_File], progress: _Progress) -> list[ManifestEntry]:
        """Raises an AgentError if a file is damaged twice."""
        damaged: list[str] = []
        for _ in range(_TRIES):
            try:
                with _Patience(f"the download of {self._id}", _bytes_written):
                    self._download(files, progress)
            except _WrongBytes as error:
                damaged = [str(error)]
                continue
            entries, damaged = self._entries(files)
            if not damaged:
                return entries
            for blob in damaged:
                (self._folder / "blobs" / blob).unlink()
        raise AgentError(
            f"{damaged[0]} of {self._id}: the hub sends other bytes than its list has the hash of",
            _LATER,
        )

    def _download(self, files: Sequence[_File], progress: _Progress) -> None:
        lacking = self.lacking(files)
        partial = sum(_size_of(self._folder / "blobs" / f"{file.blob}.incomplete") for file in lacking)
        needed = sum(file.size for file in lacking) - partial
        if needed > free_space(str(self._cache)):
            raise explain_full_disk(str(self._cache), needed)
        self.downloaded += needed
        large = [file for file in lacking if RESUMED_SIZE <= file.size <= MOST_OVER_HTTP]
        progress.total += sum(file.size for file in large)
        coming = [self._entry(f"blobs/{file.blob}", "f", file.size, file.blob) for file in large if _is_sha256(file)]
        if coming:
            store.emit_or_end("coming", folder=self._folder.name, entries=to_json(coming).decode())
        with ThreadPoolExecutor(_WORKERS) as pool:
            for _ in pool.map(lambda file: self._download_large(file, progress), large):
                pass
        self._library.hub.snapshot_download(
            self._id,
            repo_type=self._kind,
            revision=self.commit,
            cache_dir=str(self._cache),
            allow_patterns=self._patterns,
            endpoint=self._library.endpoint,
            token=self._library.token,
            max_workers=_WORKERS,
        )
        self._remove_unfinished({file.blob for file in files})
        ref = self._folder / "refs" / self._request["revision"]
        if self._request["revision"] != self.commit:
            ref.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(ref, self.commit.encode())

    def _remove_unfinished(self, blobs: Collection[str]) -> None:
        """What ended downloads have left of files that are there: huggingface_hub gives each a name of its own."""
        for path in (self._folder / "blobs").iterdir():
            if path.suffix == ".incomplete" and path.name.partition(".")[0] in blobs:
                path.unlink(missing_ok=True)

    def _download_large(self, file: _File, progress: _Progress) -> None:
        library, blob = self._library, self._folder / "blobs" / file.blob
        blob.parent.mkdir(parents=True, exist_ok=True)
        url = library.hub.hf_hub_url(
            self._id, file.path, repo_type=self._kind, revision=self.commit, endpoint=library.endpoint
        )
        partial = blob.with_name(f"{blob.name}.incomplete")
        with partial.open("ab+", buffering=0) as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)  # another call may download it, too
            if blob.exists():
                return  # `partial` is one of `_remove_unfinished` then
            if os.fstat(opened.fileno()).st_size > file.size:
                opened.truncate(0)
            metadata = library.files.get_hf_file_metadata(url, token=library.token)
            headers = library.utils.build_hf_headers(token=library.token)
            if urlsplit(metadata.location)[:2] != urlsplit(url)[:2]:
                headers.pop("authorization", None)  # a file elsewhere has its permission in its URL
            receiver = _PartialBlob(opened, progress)
            have = opened.tell()
            if have < file.size:
                library.files.http_get(
                    metadata.location, receiver, resume_size=have, headers=headers, expected_size=file.size
                )
            if _is_sha256(file) and receiver.sha256 != file.blob:
                opened.truncate(0)
                raise _WrongBytes(file.path)
            partial.replace(blob)
            if _is_sha256(file):
                number = opened.fileno()
                self._verified.add(self._row_of(file.blob), file.blob, number, os.fstat(number))

    def _entries(self, files: Sequence[_File]) -> tuple[list[ManifestEntry], list[str]]:
        """What of the cache belongs to the snapshot, and the blobs whose hash is not their name."""
        entries, damaged = [], []
        snapshot = self._folder / "snapshots" / self.commit
        blobs: set[str] = set()
        for file in files:
            pointer = snapshot / file.path
            if not pointer.is_symlink():
                raise AgentError(
                    f"{self._cache} is on a filesystem without symbolic links",
                    "name a directory on another: --home DIR",
                )
            target = os.readlink(pointer)
            blob = Path(target).name
            entries.append(self._entry(f"snapshots/{self.commit}/{file.path}", "l", 0, target))
            if blob != file.blob:
                raise AgentError(f"the hub names {file.path} of {self._id} by two hashes: {blob[:80]!r}, {file.blob}")
            if blob in blobs:
                continue
            blobs.add(blob)
            sha256 = self._sha256_of(blob)
            if sha256 is None:
                damaged.append(blob)
            else:
                entries.append(self._entry(f"blobs/{blob}", "f", _size_of(self._folder / "blobs" / blob), sha256))
        if not damaged:
            for name in (f"refs/{self._request['revision']}", f"trees/{self.commit}.json"):
                if (self._folder / name).is_file():
                    data = (self._folder / name).read_bytes()
                    entries.append(self._entry(name, "f", len(data), hashlib.sha256(data).hexdigest()))
        return entries, damaged

    def _row_of(self, blob: str) -> str:
        return f"{HUB_CACHE}/{self._folder.name}/blobs/{blob}"

    def _sha256_of(self, name: str) -> str | None:
        """Of a blob whose hash is its name; None for any other. Xet may have linked it to one of the whole cache."""
        blob = self._folder / "blobs" / name
        real = blob.resolve()
        if self._cache not in real.parents:
            raise AgentError(f"{blob} leads out of the cache", "look at it, then move it away")
        known = self._verified.sha256_of(self._row_of(name))
        if known is not None and (known == name or len(name) == 40):
            return known
        with real.open("rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            digests = [hashlib.sha256()]
            if len(name) == 40:
                digests.append(hashlib.sha1(b"blob %d\0" % before.st_size))  # noqa: S324 - git's name of a file
            for block in iter(lambda: file.read(1 << 20), b""):
                for digest in digests:
                    digest.update(block)
            if digests[-1].hexdigest() != name:
                return None
            self._verified.add(self._row_of(name), digests[0].hexdigest(), file.fileno(), before)
            return digests[0].hexdigest()

    def planned(self, files: Sequence[_File]) -> list[ManifestEntry]:
        """The list as far as the hub gives it: a small file has no sha256 there."""
        entries = [
            self._entry(
                f"snapshots/{self.commit}/{file.path}",
                "l",
                0,
                "../" * (file.path.count("/") + 2) + f"blobs/{file.blob}",
            )
            for file in files
        ]
        for blob, file in {file.blob: file for file in files}.items():
            entries.append(self._entry(f"blobs/{blob}", "f", file.size, blob if len(blob) == 64 else ""))
        return entries

    def _entry(self, path: str, kind: str, size: int, content: str) -> ManifestEntry:
        mode = 0o777 if kind == "l" else 0o644
        return ManifestEntry(f"{self._folder.name}/{path}", kind, mode, size, content)  # type: ignore[arg-type]


def _is_sha256(file: _File) -> bool:
    return store.is_sha256(file.blob)


class _WrongBytes(Exception):
    """A large file whose bytes have another hash than the hub's list."""


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def download(request: HubDownloadRequest, _: BinaryIO) -> DownloadReply:
    home = home_of(request, f"{CACHE}/any")
    make_home(home)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, resource.RLIM_INFINITY))  # a list may be of any length
    library = _Library(request)
    cache = Path(home).resolve() / CACHE
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    cache = cache.resolve()  # `hub` may be the user's link to a larger disk
    progress = _Progress()
    verified = VerifiedBlobs((Path(home) / HF_HOME).resolve())
    found = []
    for wanted in request["repos"]:
        repo = _Repo(library, cache, wanted, request["include"], verified)
        files, entries = _patiently(repo, library, wanted, progress, dry_run=request["dry_run"])
        lacking = repo.lacking(files) if request["dry_run"] else []
        downloaded = sum(file.size for file in lacking) if request["dry_run"] else repo.downloaded
        folder = folder_of(wanted["kind"], wanted["repo_id"])
        if not request["dry_run"]:
            verified.save()
        found.append(SnapshotReply(folder, repo.commit, to_json(entries).decode(), len(files), downloaded))
    return DownloadReply(str(library.hub.__version__), tuple(found))


def _patiently(
    repo: _Repo, library: _Library, wanted: WantedRepo, progress: _Progress, *, dry_run: bool
) -> tuple[list[_File], list[ManifestEntry]]:
    """A hub that has had too many requests says how long to wait."""
    waited = 0.0
    while True:
        try:
            files = repo.find()
            return files, repo.planned(files) if dry_run else repo.download(files, progress)
        except (library.utils.HfHubHTTPError, *library.network_errors, ValueError) as error:
            seconds = _asked_wait(error, library)
            waited += seconds
            if not seconds or waited > _LONGEST_WAIT:
                raise _explain(error, library, wanted) from None
            store.emit_or_end("waiting", seconds=seconds)
            wait_until(lambda: False, seconds, _TICK)


def _asked_wait(error: Exception, library: _Library) -> float:
    """The seconds after which the hub takes requests again; 0 for any other error."""
    answered = _answer_of(error, library)
    if answered is None or answered.response.status_code != _TOO_MANY:
        return 0
    text = answered.response.headers.get("Retry-After") or ""
    return float(text) + 1 if text.isdecimal() else _UNKNOWN_WAIT


def _answer_of(error: Exception, library: _Library) -> Any:
    """The answer of the hub that an error is about; None if there was none."""
    kind = library.utils.HfHubHTTPError
    found = next((cause for cause in _causes(error) if isinstance(cause, kind)), None)
    return None if getattr(found, "response", None) is None else found


def _explain(error: Exception, library: _Library, wanted: WantedRepo) -> AgentError:
    """The hub's own answer, with the line to type."""
    name, endpoint = wanted["repo_id"], library.endpoint
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return explain_os_error(error)
    answered = _answer_of(error, library)
    if answered is None:
        text = " ".join(str(error).split())[:_MOST_SHOWN] or type(error).__name__
        reason = f"{name} can't be downloaded from {endpoint}: {text}"
        if not any(type(cause).__name__ in _NOT_CONNECTED for cause in _causes(error)):
            return AgentError(reason, "what has arrived is kept: run it again")
        return AgentError(
            f"{reason}: the hub can't be reached from there",
            "a machine that reaches it: --on HOST; a mirror: HF_ENDPOINT=URL; a proxy: HTTPS_PROXY=URL; without any, "
            f"on another machine: hf download {name} --local-dir {name}; then: ipexctl push {name} models/{name}",
        )
    response = answered.response
    code, kind = response.status_code, response.headers.get("X-Error-Code", "")
    message = (
        getattr(answered, "server_message", None) or response.headers.get("X-Error-Message") or response.reason_phrase
    )
    reason = f"{endpoint} refuses {name} ({code}): {' '.join(str(message).split())[:_MOST_SHOWN]}"
    page = f"{endpoint}/{'datasets/' if wanted['kind'] == 'dataset' else ''}{name}"
    if kind == "GatedRepo":
        return AgentError(reason, f"ask for access on {page}; {_LOG_IN}")
    if kind == "RevisionNotFound":
        return AgentError(f"{reason} (revision {wanted['revision']})", f"see the branches and tags on {page}")
    if code in (401, 403) or kind == "RepoNotFound":
        return AgentError(reason, f"is the name right: {page}? if it is private, {_LOG_IN}")
    if code == _TOO_MANY:
        return AgentError(
            reason, f"wait {_seconds(response.headers.get('Retry-After'))}, then run it again: what has arrived is kept"
        )
    return AgentError(reason, "what has arrived is kept: run it again later")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _seconds(text: str | None) -> str:
    return f"{text} s" if text is not None and text.isdecimal() else "some minutes"


def main(action: str) -> int:
    store.end_on_signals()
    actions: dict[str, Action] = {"download": download}
    return answer(actions[action])
