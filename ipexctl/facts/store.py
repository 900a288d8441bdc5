"""Which hosts share one home: a token from what identifies the filesystem below it. Pure.

A file with a random name in it would tell as well, but a look at a host writes nothing there. So:

- On a filesystem of the network, the name the server gives it (`nfs1:/export/home`, without the server's domain,
  which some machines mount by and some don't), the directory below that, and its inode, which is the server's.
  The server's address stays out: large ones have many, and hand every client another.
- On a disk of its own, device and inode, which mean something to one kernel only: the boot id says to which.
  Cloned machines have the same filesystem ids, inodes and birth times, and don't share a byte. Containers with
  one directory of their machine mounted in each have one boot id, device and inode, and do share it.

The directory is the one that holds ours, which is there before the first install as after it; ours itself where
it is a link or a mount.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ipexctl.facts.system import Mount

NETWORK_FILESYSTEMS: Final = frozenset(
    "nfs nfs4 cifs smb3 smbfs lustre gpfs ceph beegfs fhgfs afs 9p virtiofs glusterfs orangefs pvfs2 panfs wekafs "  # noqa: SIM905
    "gfs2 ocfs2 fuse.glusterfs fuse.sshfs fuse.ceph fuse.ceph-fuse fuse.juicefs fuse.s3fs fuse.rclone fuse.moosefs "
    "fuse.mfs fuse.lizardfs fuse.beegfs fuse.quobyte fuse.vmhgfs-fuse fuse.gcsfuse fuse.daos daos efs dvs vboxsf "
    "fuse.cvmfs2 prl_fs acfs".split()
)
_INODES_OF_THE_CLIENT: Final = frozenset({"fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "fuse.vmhgfs-fuse"})


def is_network(kind: str) -> bool:
    return kind in NETWORK_FILESYSTEMS or kind.startswith("nfs")


def store_token(path: str, device: int, inode: int, mount: Mount | None, boot: str | None) -> str | None:
    """The token of a directory; None where too little is known to tell."""
    if mount is not None and mount.is_network:
        below = path[len(mount.point.rstrip("/")) :]
        whole = f"{_export(mount)}{mount.root.rstrip('/')}{below}"
        # One server is mounted as nfs here and as nfs4 there.
        kind = "nfs" if mount.type.startswith("nfs") else mount.type
        return f"{kind}:{whole}" + ("" if mount.type in _INODES_OF_THE_CLIENT else f"#{inode}")
    return f"{boot}:{device}#{inode}" if boot else None


def _export(mount: Mount) -> str:
    """What the server calls it: `nfs1.cluster:/export/` → `nfs1:/export`."""
    server, colon, path = mount.source.rpartition(":/")
    if not colon:
        return mount.source.rstrip("/")
    path = path.rstrip("/")
    if mount.type in ("lustre", "ceph"):
        # Their servers are a list, in whatever order.
        return f"/{path}"
    numeric = "[" in server or server.replace(".", "").isdigit()
    return f"{server if numeric else server.split('.')[0].lower()}:/{path}"
