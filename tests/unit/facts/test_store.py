"""Shared homes, recognised from the kernel's description of the file system."""

from __future__ import annotations

import pytest

from ipexctl.facts.store import store_token
from ipexctl.facts.system import parse_mount

LOCAL = "29 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"
NFS = "71 60 0:43 / /home rw shared:31 - nfs4 nfs1.hpc.example.edu:/export/home rw,vers=4.1,addr={address}"


def token(row: str, path: str, boot: str = "boot-1", inode: int | None = None) -> str | None:
    mount = parse_mount(row)
    assert mount is not None
    return store_token(path, mount, boot, inode)


def test_one_server_is_one_store_whatever_address_it_gave_each_client() -> None:
    one = token(NFS.format(address="10.1.0.5"), "/home/me", "boot-1")
    other = token(NFS.format(address="10.1.0.6"), "/home/me", "boot-2")
    assert one == other == "nfs:nfs1:/export/home/me"


@pytest.mark.parametrize(
    "row",
    [
        "71 60 0:44 / /home/me rw - nfs4 nfs1.hpc.example.edu:/export/home/me rw",
        "71 60 0:44 / /home rw - nfs nfs1:/export/home/ rw,vers=3",
        "71 60 0:44 /home /home rw - nfs4 nfs1:/export rw",
    ],
)
def test_an_automounter_an_older_protocol_or_a_bind_mount_makes_no_other_store(row: str) -> None:
    assert token(row, "/home/me", "boot-2") == token(NFS, "/home/me")


@pytest.mark.parametrize(
    ("row", "path"),
    [
        (NFS.replace("nfs1", "nfs2"), "/home/me"),
        (NFS.replace("/export/home", "/export/nodes/7"), "/home/me"),
        (NFS, "/home/you"),
        (LOCAL, "/home/me"),
    ],
)
def test_another_server_export_or_directory_is_another_store(row: str, path: str) -> None:
    assert token(row, path) != token(NFS, "/home/me")


def test_clones_of_one_machine_don_t_share_what_looks_the_same() -> None:
    assert token(LOCAL, "/home/me", "boot-1") != token(LOCAL, "/home/me", "boot-2")


def test_containers_with_one_directory_of_their_machine_share_it_wherever_it_is_mounted() -> None:
    one = "812 601 8:1 /srv/shared /home/me rw - ext4 /dev/sda1 rw"
    other = "813 602 8:1 /srv/shared /data rw - ext4 /dev/sda1 rw"
    assert token(one, "/home/me") == token(other, "/data") == token(LOCAL, "/srv/shared")
    assert token("814 603 0:57 / / rw - overlay overlay rw", "/home/me") != token(one, "/home/me")


def test_guests_that_call_different_directories_by_one_name_are_told_apart_by_the_inode() -> None:
    row = "40 1 0:30 / /home rw - virtiofs home rw"
    assert token(row, "/home/me", inode=10) == token(row, "/home/me", "boot-2", inode=10)
    assert token(row, "/home/me", inode=10) != token(row, "/home/me", inode=11)
    assert token(row, "/home/me") is None


def test_lustre_and_ceph_are_one_store_in_whatever_order_their_servers_are_named() -> None:
    one = "72 60 0:44 / /scratch rw - lustre 10.2.0.1@o2ib:10.2.0.2@o2ib:/scratch rw"
    other = "72 60 0:45 / /scratch rw - lustre 10.2.0.2@o2ib:10.2.0.1@o2ib:/scratch rw"
    assert token(one, "/scratch/me") == token(other, "/scratch/me", "boot-2") == "lustre:/scratch/me"


def test_a_path_with_blanks_in_mountinfo() -> None:
    mount = parse_mount(r"36 35 98:0 / /mnt/my\040disk rw - cifs //filer/my\040share rw")
    assert mount is not None
    assert (mount.point, mount.source) == ("/mnt/my disk", "//filer/my share")
