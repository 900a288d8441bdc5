"""A file system that finds a name in any case and any Unicode form, and keeps it as it was made: as APFS does.

This machine's kernel need have none of that kind: ext4's casefold, vfat and exfat are options of a kernel, and exfat in
user space shows one file as two. So this serves a directory below through /dev/fuse, by the protocol of
`linux/fuse.h`. Each file is held open by `O_PATH` and keeps its inode, so that two spellings are one file. It is slow.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import stat
import struct
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_IN, _OUT = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
_SETATTR = struct.Struct("<IIQQQQQQIIIIIIII")
_NO_REPLY = (2, 36, 42)
_MODE, _UID, _GID, _SIZE, _ATIME, _MTIME, _ATIME_NOW, _MTIME_NOW = (1 << bit for bit in (0, 1, 2, 3, 4, 5, 7, 8))
_MINOR, _BIG_WRITES, _WRITE = 31, 1 << 5, 1 << 16


def fold(name: bytes) -> str:
    return unicodedata.normalize("NFD", name.decode("utf-8", "surrogateescape")).casefold()


class Disk:
    """Answers the kernel's requests with what is below a directory."""

    def __init__(self, below: str) -> None:
        self._nodes = {1: os.open(below, os.O_PATH | os.O_DIRECTORY)}
        self._known = {self._identity(self._nodes[1]): 1}
        self._lists: dict[int, list[tuple[bytes, os.stat_result]]] = {}

    @staticmethod
    def _identity(number: int) -> tuple[int, int]:
        status = os.fstat(number)
        return status.st_dev, status.st_ino

    def _path(self, node: int) -> str:
        return f"/proc/self/fd/{self._nodes[node]}"

    def _stored(self, node: int, name: bytes) -> bytes:
        """The name as the directory has it; as it is if there is none."""
        wanted = fold(name)
        names = os.listdir(os.fsencode(self._path(node)))
        return name if name in names else next((entry for entry in names if fold(entry) == wanted), name)

    def _attributes(self, status: os.stat_result) -> bytes:
        times = [status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns]
        seconds, parts = [at // 10**9 for at in times], [at % 10**9 for at in times]
        owner = (status.st_mode, status.st_nlink, status.st_uid, status.st_gid, 0, 4096, 0)
        return _ATTR.pack(status.st_ino, status.st_size, status.st_blocks, *seconds, *parts, *owner)

    def _entry(self, node: int, name: bytes) -> bytes:
        number = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self._nodes[node])
        found = self._known.setdefault(self._identity(number), len(self._nodes) + 1)
        if found in self._nodes:
            os.close(number)
        else:
            self._nodes[found] = number
        return struct.pack("<QQQQII", found, 0, 0, 0, 0, 0) + self._attributes(os.fstat(self._nodes[found]))

    def answer(self, code: int, node: int, data: bytes) -> bytes:
        """Raises an OSError for what fails, and a KeyError for a request that this file system does not know."""
        if code in _NO_ANSWER:
            return b""
        if code in _OF_NAMES:
            at, kind = _OF_NAMES[code]
            return self._of_name(kind, node, data[:at], data[at:].split(b"\0"))
        return _OF_NODES[code](self, node, data)

    def _of_name(self, kind: str, node: int, head: bytes, names: list[bytes]) -> bytes:
        """A request about an entry of a directory."""
        at, name = self._nodes[node], self._stored(node, names[0])
        if kind == "lookup":
            return self._entry(node, name)
        if kind == "unlink":
            os.unlink(name, dir_fd=at)
            return b""
        if kind == "rmdir":
            os.rmdir(name, dir_fd=at)
            return b""
        if kind == "rename":
            above = struct.unpack_from("<Q", head)[0]
            if len(head) > 8 and struct.unpack_from("<I", head, 8)[0]:  # to exchange two, or not to replace one
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            os.rename(name, self._stored(above, names[1]), src_dir_fd=at, dst_dir_fd=self._nodes[above])
            return b""
        handle = b""
        if kind == "symlink":
            os.symlink(names[1], name, dir_fd=at)
        elif kind == "mknod":
            os.mknod(name, struct.unpack_from("<I", head)[0], dir_fd=at)
        elif kind == "mkdir":
            os.mkdir(name, struct.unpack_from("<I", head)[0], dir_fd=at)
        elif kind == "link":
            os.link(self._path(struct.unpack_from("<Q", head)[0]), name, dst_dir_fd=at, follow_symlinks=True)
        else:
            flags, mode = struct.unpack_from("<II", head)
            handle = struct.pack("<QII", os.open(name, (flags | os.O_CREAT) & ~os.O_APPEND, mode, dir_fd=at), 0, 0)
        return self._entry(node, name) + handle

    def _init(self, _: int, __: bytes) -> bytes:
        sizes = (1 << 17, _BIG_WRITES, 12, 9, _WRITE, 1)
        return struct.pack("<IIIIHHII", 7, _MINOR, *sizes).ljust(64, b"\0")

    def _get_attributes(self, node: int, _: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(os.fstat(self._nodes[node]))

    def _read_link(self, node: int, _: bytes) -> bytes:
        return os.readlink(b"", dir_fd=self._nodes[node])

    def _open(self, node: int, data: bytes) -> bytes:
        flags = struct.unpack_from("<I", data)[0] & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND)
        return struct.pack("<QII", os.open(self._path(node), flags), 0, 0)

    def _read(self, _: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", data)
        return os.pread(handle, size, offset)

    def _write(self, _: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", data)
        return struct.pack("<II", os.pwrite(handle, data[40 : 40 + size], offset), 0)

    def _statfs(self, node: int, _: bytes) -> bytes:
        of = os.statvfs(self._path(node))
        blocks = (of.f_blocks, of.f_bfree, of.f_bavail, of.f_files, of.f_ffree)
        return struct.pack("<QQQQQIIII", *blocks, of.f_bsize, 255, of.f_frsize, 0).ljust(80, b"\0")

    def _release(self, _: int, data: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", data)[0])
        return b""

    def _open_directory(self, node: int, _: bytes) -> bytes:
        self._lists[node] = self._list(node)
        return struct.pack("<QII", node, 0, 0)

    def _set_attributes(self, node: int, data: bytes) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atimens, mtimens, _, mode, _, uid, gid, _ = _SETATTR.unpack_from(data)
        path, status, now = self._path(node), os.fstat(self._nodes[node]), time.time_ns()
        if stat.S_ISLNK(status.st_mode):
            return self._get_attributes(node, b"")
        if valid & (_UID | _GID):
            os.chown(path, uid if valid & _UID else -1, gid if valid & _GID else -1)
        if valid & _MODE:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & _SIZE:
            os.truncate(path, size)
        if valid & (_ATIME | _MTIME):
            read = now if valid & _ATIME_NOW else atime * 10**9 + atimens
            written = now if valid & _MTIME_NOW else mtime * 10**9 + mtimens
            at = (read if valid & _ATIME else status.st_atime_ns, written if valid & _MTIME else status.st_mtime_ns)
            os.utime(path, ns=at)
        return self._get_attributes(node, b"")

    def _list(self, node: int) -> list[tuple[bytes, os.stat_result]]:
        at, found = self._nodes[node], []
        for name in [b".", b"..", *os.listdir(os.fsencode(self._path(node)))]:
            with contextlib.suppress(FileNotFoundError):
                found.append((name, os.stat(name, dir_fd=at, follow_symlinks=False)))
        return found

    def _read_directory(self, node: int, data: bytes) -> bytes:
        offset, size = struct.unpack_from("<QI", data, 8)
        found = b""
        for number, (name, status) in enumerate(self._lists[node][offset:], offset + 1):
            kind = stat.S_IFMT(status.st_mode) >> 12
            entry = struct.pack("<QQII", status.st_ino, number, len(name), kind) + name
            entry += b"\0" * (-len(entry) % 8)
            if len(found) + len(entry) > size:
                break
            found += entry
        return found


_NO_ANSWER = (20, 25, 29, 30, 38)
"""fsync, flush, releasedir, fsyncdir, destroy."""
_OF_NAMES = {
    1: (0, "lookup"),
    6: (0, "symlink"),
    8: (16, "mknod"),
    9: (8, "mkdir"),
    10: (0, "unlink"),
    11: (0, "rmdir"),
    12: (8, "rename"),
    13: (8, "link"),
    35: (16, "create"),
    45: (16, "rename"),
}
"""Each request about an entry: the bytes in front of its names."""
_OF_NODES: dict[int, Callable[[Disk, int, bytes], bytes]] = {
    3: Disk._get_attributes,
    4: Disk._set_attributes,
    5: Disk._read_link,
    14: Disk._open,
    15: Disk._read,
    16: Disk._write,
    17: Disk._statfs,
    18: Disk._release,
    26: Disk._init,
    27: Disk._open_directory,
    28: Disk._read_directory,
}


def serve(directory: str, below: str) -> None:
    """Until it is unmounted."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    disk, device = Disk(below), os.open("/dev/fuse", os.O_RDWR)
    os.umask(0)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"disk", os.fsencode(directory), b"fuse", 0, options.encode()):
        sys.exit(os.strerror(ctypes.get_errno()))
    while True:
        try:
            request = os.read(device, _WRITE + (1 << 16))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):  # the request was withdrawn
                continue
            return
        _, code, unique, node, *_ = _IN.unpack_from(request)
        if code in _NO_REPLY:
            continue
        try:
            reply, failed = disk.answer(code, node, request[_IN.size :]), 0
        except KeyError:
            reply, failed = b"", errno.ENOSYS
        except OSError as error:
            reply, failed = b"", error.errno or errno.EIO
        with contextlib.suppress(OSError):
            os.write(device, _OUT.pack(_OUT.size + len(reply), -failed, unique) + reply)


@contextmanager
def mounted(directory: Path) -> Iterator[None]:
    """Mount it on that directory, as root; its files are in a directory beside it."""
    below = directory.with_name(f"{directory.name}.files")
    below.mkdir()
    server = subprocess.Popen([sys.executable, __file__, str(directory), str(below)])
    try:
        until = time.monotonic() + 10
        while not os.path.ismount(directory):
            assert server.poll() is None, "the disk is not mounted"
            assert time.monotonic() < until
            time.sleep(0.02)
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=False)
        server.terminate()
        server.wait(10)


if __name__ == "__main__":
    serve(*sys.argv[1:])
