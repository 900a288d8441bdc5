"""Tokens that identify stores: hosts with equal tokens share one home. Pure.

A token describes the home's parent, which exists before the first install, or the home itself if it is a link or mount:

- Network filesystem: the server's short name and the directory, `nfs1:/export/home`, because domain and address differ
  between clients; plus the inode if the guest chooses the name (9p, virtiofs).
- Disk: boot id, filesystem number and directory. Cloned machines differ only in the boot id. Containers on one machine
  have the same boot id, and do share a directory that is mounted into them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ipexctl.facts.system_facts import Mount

NETWORK_FILESYSTEMS: Final = frozenset(
    "nfs nfs4 cifs smb3 smbfs lustre gpfs ceph beegfs fhgfs afs 9p virtiofs glusterfs orangefs pvfs2 panfs wekafs "  # noqa: SIM905
    "gfs2 ocfs2 fuse.glusterfs fuse.sshfs fuse.ceph fuse.ceph-fuse fuse.juicefs fuse.s3fs fuse.rclone fuse.moosefs "
    "fuse.mfs fuse.lizardfs fuse.beegfs fuse.quobyte fuse.vmhgfs-fuse fuse.gcsfuse fuse.daos daos efs dvs vboxsf "
    "fuse.cvmfs2 prl_fs acfs".split()
)
_NAMED_BY_GUEST: Final = frozenset({"9p", "virtiofs", "vboxsf"})


def is_network(kind: str) -> bool:
    return kind in NETWORK_FILESYSTEMS or kind.startswith("nfs")


def store_token(path: str, mount: Mount | None, boot: str | None, inode: int | None = None) -> str | None:
    if mount is None:
        return None
    below = path[len(mount.point.rstrip("/")) :].rstrip("/")
    within = f"{mount.root.rstrip('/')}{below}"
    if not mount.is_network:
        return f"{boot}:{mount.device}:{within or '/'}" if boot else None
    # Hosts may mount the same server as nfs or nfs4.
    kind = "nfs" if mount.type.startswith("nfs") else mount.type
    token = f"{kind}:{_export(mount)}{within}"
    if mount.type not in _NAMED_BY_GUEST:
        return token
    return f"{token}#{inode}" if inode is not None else None


def _export(mount: Mount) -> str:
    """Return `nfs1:/export` for `nfs1.cluster:/export/`."""
    server, colon, path = mount.source.rpartition(":/")
    if not colon:
        return mount.source.rstrip("/")
    path = f"/{path}".rstrip("/")
    if mount.type in ("lustre", "ceph"):
        # The source is a list of servers in any order.
        return path
    numeric = "[" in server or server.replace(".", "").isdigit()
    return f"{server if numeric else server.split('.')[0].lower()}:{path}"
