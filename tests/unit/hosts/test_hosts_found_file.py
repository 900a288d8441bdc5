"""Found hostfiles: which one counts, and that it cannot run local programs or weaken the check of host keys."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from case_table import case_table
from hosts_helpers import almost_valid, any_text, assert_can_be_reached, assert_points_inside, user_error
from ipexctl.errors import FileError, UserError
from ipexctl.hosts.detect import detect, read_hosts_file
from ipexctl.hosts.host import Host
from ipexctl.hosts.hostfile import read_hostfile
from ipexctl.hosts.inventory_files import read_inventory_ini, read_inventory_yaml
from ipexctl.hosts.select import HostRequest, select_hosts
from message_data import missing

ARGUMENTS = (
    ("-F cfg", "-F"),
    ("-Fcfg", "-F"),
    ("-vF cfg", "-F"),
    ("-I lib.so", "-I"),
    ("-o PKCS11Provider=lib.so", "PKCS11Provider"),
    ("-o SecurityKeyProvider=lib.so", "SecurityKeyProvider"),
    ("-o KnownHostsCommand=x", "KnownHostsCommand"),
    ("-o PermitLocalCommand=yes -o LocalCommand=x", "PermitLocalCommand"),
    ("-o Include=cfg", "Include"),
    ("-o StrictHostKeyChecking=no", "StrictHostKeyChecking"),
    ("-o UserKnownHostsFile=k", "UserKnownHostsFile"),
    ("-o UserKnownHostsFile=/dev/null", "UserKnownHostsFile"),
    ("-o =UserKnownHostsFile=k", "UserKnownHostsFile"),
    ("-o GlobalKnownHostsFile=k", "GlobalKnownHostsFile"),
    ("-o HostKeyAlias=other", "HostKeyAlias"),
    ("-o ProxyJump=none", "ProxyJump"),
    ("-C -o ProxyCommand=x", "ProxyCommand"),
    ("-oproxycommand=x", "proxycommand"),
    ("-o 'ProxyCommand x %h'", "ProxyCommand"),
    ("-vo ProxyCommand=x", "ProxyCommand"),
    ("-voProxyCommand=x", "ProxyCommand"),
    ("-o =ProxyCommand=x", "ProxyCommand"),
    ("-o ProxyJump=b", "ProxyJump"),
    ("-J b", "-J"),
)
ODD = ("-vo ProxyCommand", "-voProxyCommand", "-o =ProxyCommand")
"""Refused in every file: ipexctl does not parse these forms of ssh options."""
VARIABLES = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
INI = tuple(
    (f'n1 {variable}="{arguments}"\n' if own else f"[all]\nn1\n[all:vars]\n{variable}={arguments}\n", option)
    for arguments, option in ARGUMENTS
    for variable in VARIABLES
    for own in (True, False)
)
YAML = tuple(
    (
        f'all:\n  hosts:\n    n1: {{{variable}: "{arguments}"}}\n'
        if own
        else f'all:\n  hosts:\n    n1:\n  vars:\n    {variable}: "{arguments}"\n',
        option,
    )
    for arguments, option in ARGUMENTS
    for variable in VARIABLES
    for own in (True, False)
)
LINES = (
    ("n1 ssh_config=cfg\n", "ssh_config="),
    ("n1 ssh-config=cfg\n", "ssh_config="),
    ("n1 ssh_config = none\n", "ssh_config="),
    ("n[1-3]:2 user=me ssh_config=cfg # x\n", "ssh_config="),
    ("n1 slots=2 known_hosts=k\n", "known_hosts="),
)
HARMLESS = (
    "n1 address=10.0.0.1 internal=10.1.0.1 user=me port=2222 identity=keys/id slots=2 max_slots=4\n",
    "n1 ansible_connection=local\n",
    "n1 ansible_host=10.0.0.1 ansible_user=me ansible_port=2222 ansible_ssh_private_key_file=keys/id slots=2\n",
    "n1 ansible_ssh_args='-o ControlMaster=auto -o ControlPersist=60s'\n",
    "n1 ansible_ssh_common_args='-C -o IdentitiesOnly=yes'\n",
    "n1 ansible_become=yes ansible_become_method=sudo ansible_become_exe=/x ansible_python_interpreter=/x\n",
    "n1 ansible_ssh_executable=/x ansible_shell_executable=/x ansible_host_key_checking=no\n",
)


def read(text: str, place: Path, **changes: Path) -> tuple[Host, ...]:
    (place / "hostfile").write_text(text)
    return select_hosts(HostRequest(**changes), environ={}, cwd=place).hosts  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "setting"), [*LINES, *INI, *YAML])
def test_unsafe_settings_are_refused_in_a_found_file_only(text: str, setting: str, tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        read(text, tmp_path)
    error = caught.value
    assert_points_inside(error)
    assert error.what.startswith(f"{setting} ")
    assert setting.strip("-=").replace("_", "-") in error.text.replace("_", "-")
    assert missing(error.fix, f"-H hostfile IPEXCTL_HOSTFILE={tmp_path}/hostfile") == []
    if not any(odd in text for odd in ODD):
        assert read(text, tmp_path, hostfile=Path("hostfile"))[0].name == "n1"


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_settings_are_accepted_in_a_found_file(text: str, tmp_path: Path) -> None:
    assert read(text, tmp_path) == read(text, tmp_path, hostfile=Path("hostfile"))


@pytest.mark.parametrize("reader", [read_hostfile, read_inventory_ini, read_inventory_yaml])
@given(text=almost_valid)
def test_found_files_never_set_ssh_config_or_known_hosts(reader: object, text: str) -> None:
    try:
        hosts = reader(text, "file", found="file")  # type: ignore[operator]
    except FileError:
        return
    assert {(host.ssh_config, host.known_hosts) for host in hosts} <= {(None, None)}


def test_hostfile_from_the_environment_may_set_ssh_config(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("n1 ssh_config=cfg\n")
    (host,) = select_hosts(HostRequest(), environ={"IPEXCTL_HOSTFILE": "env"}, cwd=tmp_path).hosts
    assert host.ssh_config == tmp_path / "cfg"


def test_pbs_nodefile_may_not_set_ssh_config(tmp_path: Path) -> None:
    file = tmp_path / "nodes file"
    file.write_text("n1 ssh_config=cfg\n")
    with pytest.raises(FileError) as caught:
        select_hosts(HostRequest(), environ={"PBS_NODEFILE": str(file)}, cwd=tmp_path)
    assert missing(caught.value.fix, f"-H '{tmp_path}/nodes export IPEXCTL_HOSTFILE='{tmp_path}/nodes") == []


def test_accelerate_hostfile_is_trusted_if_its_config_was_named(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("n1 known_hosts=k\n")
    named = HostRequest(accelerate_hostfile=Path("hosts"))
    assert select_hosts(named, environ={}, cwd=tmp_path).hosts[0].known_hosts == tmp_path / "k"
    found = HostRequest(accelerate_hostfile=Path("hosts"), accelerate_found=True)
    with pytest.raises(FileError) as caught:
        select_hosts(found, environ={}, cwd=tmp_path)
    assert caught.value.fix.endswith(": -H hosts")  # the variable would not win over the configuration


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kind", ["fifo", "device", "socket"])
@pytest.mark.parametrize("place", ["cwd", "project"])
def test_found_hostfile_that_is_no_regular_file_is_refused(kind: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    hostfile = tmp_path / "hostfile"
    if kind == "fifo":
        os.mkfifo(hostfile)
    elif kind == "device":
        hostfile.symlink_to("/dev/zero")
    else:
        os.mknod(hostfile, 0o140666)
    cwd = tmp_path if place == "cwd" else tmp_path / "elsewhere"
    with pytest.raises(UserError) as caught:
        select_hosts(HostRequest(), environ={}, cwd=cwd, project=tmp_path)
    assert "-H " in (caught.value.fix or "")


@pytest.mark.timeout(10)
def test_named_hostfile_may_be_a_pipe(tmp_path: Path) -> None:
    """`-H <(command)` of a shell names one."""
    os.mkfifo(tmp_path / "pipe")
    threading.Thread(target=lambda: (tmp_path / "pipe").write_text("node1\n"), daemon=True).start()
    selection = select_hosts(HostRequest(hostfile=tmp_path / "pipe"), environ={}, cwd=tmp_path)
    assert [host.name for host in selection.hosts] == ["node1"]


@case_table
def test_format_is_detected_by_suffix_or_content(text: str, suffix: str, kind: str) -> None:
    assert detect(text, suffix) == kind


@case_table
def test_every_format_is_read_from_disk(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert [host.name for host in read_hosts_file(path)] == ["n1", "n2"]


def test_paths_in_a_hostfile_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    path.write_text("n identity=key\n")
    (host,) = read_hosts_file(path, shown="./hostfile")
    assert host.identity == tmp_path / "key"


@pytest.fixture
def unreadable(tmp_path: Path) -> Iterator[Path]:
    """Root may read every file, so the test runs as another user."""
    path = tmp_path / "secret"
    path.write_text("n1\n")
    path.chmod(stat.S_IWUSR)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield path
    os.seteuid(before)


def test_missing_read_permission_is_reported_with_chmod_as_fix(unreadable: Path) -> None:
    error = user_error(read_hosts_file, unreadable)
    assert missing(error.message, str(unreadable)) == []
    assert f"chmod a+r {unreadable}" in error.fix


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(st.binary(max_size=200), any_text.map(lambda text: text.encode("utf-8", "surrogatepass"))),
    st.sampled_from(["hosts", "hosts.ini", "hosts.yml"]),
)
def test_any_bytes_give_hosts_or_a_user_error(tmp_path: Path, data: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    try:
        assert_can_be_reached(read_hosts_file(path))
    except FileError as error:
        assert_points_inside(error)
    except UserError as error:
        assert error.fix
