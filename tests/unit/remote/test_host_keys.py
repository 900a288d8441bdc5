"""Trusted and refused host keys, and the messages about them."""

from __future__ import annotations

import base64
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ipexctl.remote.host_keys import HostKeys, Policy, fingerprint_of
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.ssh_config import Endpoint

KEY, OTHER = b"its key", b"another key"


def line(name: str, key: bytes) -> str:
    return f"{name} ssh-ed25519 {base64.b64encode(key).decode()}\n"


@pytest.fixture
def at(tmp_path: Path) -> Endpoint:
    return Endpoint(
        "10.0.0.1", 2222, "me", known_hosts=(tmp_path / ".ssh" / "known_hosts", tmp_path / "global"), name="n1"
    )


def write_known_hosts(at: Endpoint, text: str) -> Path:
    path = at.known_hosts[0]
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


ALIAS = {"key_alias": "cluster"}


@pytest.mark.parametrize(
    ("policy", "own", "system", "changes", "refused"),
    [
        ("strict", "", line("[10.0.0.1]:2222", KEY), {}, None),
        ("accept-new", line("[10.0.0.1]:2222", OTHER), line("[10.0.0.1]:2222", KEY), {}, None),
        ("strict", line("10.0.0.1", KEY), "", {}, None),
        ("strict", line("10.0.0.1", KEY), "", ALIAS, "is unknown"),
        ("accept-new", line("10.0.0.1", KEY) + line("[10.0.0.1]:2222", OTHER), "", {}, "CHANGED"),
        ("accept-new", "@revoked " + line("10.0.0.1", KEY), "", {}, "@revoked"),
        ("strict", "@cert-authority " + line("*", OTHER), "", {}, "is unknown"),
        ("strict", "", "", {"known_hosts": (Path("/dev/zero"),)}, "is unknown"),
        ("off", "", "", {}, None),
        (None, "", "", {"strict": "off"}, None),
        (None, "", "", {}, "is unknown"),
        ("strict", "", "", {"strict": "off"}, "is unknown"),
    ],
)
def test_host_keys_are_accepted_or_refused_without_changing_the_files(
    at: Endpoint, policy: Policy | None, own: str, system: str, changes: dict[str, Any], refused: str | None
) -> None:
    write_known_hosts(at, own)
    at.known_hosts[1].write_text(system)
    expected = pytest.raises(Unreachable, match=refused) if refused else nullcontext()
    with expected:
        HostKeys(policy).check(at._replace(**changes), "ssh-ed25519", fingerprint_of(KEY))
    assert [path.read_text() for path in at.known_hosts] == [own, system]


def test_preferred_types_include_keys_known_without_the_port(at: Endpoint) -> None:
    write_known_hosts(at, line("10.0.0.1", KEY))
    assert HostKeys("strict").preferred_types(at) == ("ssh-ed25519",)


def test_unknown_key_error_has_fingerprint_and_accept_command(at: Endpoint) -> None:
    with pytest.raises(Unreachable) as caught:
        HostKeys("strict").check(at, "ssh-ed25519", fingerprint_of(KEY))
    assert fingerprint_of(KEY) in caught.value.reason
    assert f"ssh-keyscan -p 2222 10.0.0.1 >> {at.known_hosts[0]}" in caught.value.fix
    assert not at.known_hosts[0].exists()


@pytest.mark.parametrize("is_there", [True, False])
def test_unknown_key_of_a_removed_lab_has_no_command_that_writes_to_its_files(
    at: Endpoint, tmp_path: Path, is_there: bool
) -> None:
    file = tmp_path / "labs/lab/known_hosts"
    if is_there:
        file.parent.mkdir(parents=True)
    with pytest.raises(Unreachable) as caught:
        HostKeys("strict").check(at._replace(known_hosts=(file,)), "ssh-ed25519", fingerprint_of(KEY))
    assert ("ssh-keyscan" in caught.value.fix) == is_there
    assert ("ipexctl lab list" in caught.value.fix) == (not is_there)


@pytest.mark.parametrize(
    "changes", [{"jump": "gate"}, ALIAS], ids=["a bastion is in between", "the name would be wrong"]
)
def test_keyscan_is_not_suggested_with_a_bastion_or_an_alias(at: Endpoint, changes: dict[str, Any]) -> None:
    with pytest.raises(Unreachable) as caught:
        HostKeys("strict").check(at._replace(**changes), "ssh-ed25519", fingerprint_of(KEY))
    assert "keyscan" not in caught.value.fix
    assert "ipexctl exec -l n1 --host-keys accept-new -- true" in caught.value.fix


@pytest.mark.parametrize("policy", ["strict", "accept-new"])
def test_changed_key_is_refused_with_file_and_line_of_the_old_key(at: Endpoint, policy: Policy) -> None:
    path = write_known_hosts(at, "# comment\n" + line("[10.0.0.1]:2222", OTHER))
    with pytest.raises(Unreachable, match="CHANGED") as caught:
        HostKeys(policy).check(at, "ssh-ed25519", fingerprint_of(KEY))
    assert f"{path}:2" in caught.value.reason
    assert f"ssh-keygen -R '[10.0.0.1]:2222' -f {path}" in caught.value.fix


@pytest.mark.parametrize("policy", ["strict", "accept-new"])
@pytest.mark.parametrize("key_alias", [None, "cluster"])
@pytest.mark.parametrize("file", [0, 1])
def test_a_key_of_another_type_than_the_known_one_is_a_changed_key(
    at: Endpoint, policy: Policy, key_alias: str | None, file: int
) -> None:
    at = at._replace(key_alias=key_alias)
    write_known_hosts(at, "")
    at.known_hosts[file].write_text(line(at.key_name, OTHER))
    before = [path.read_text() for path in at.known_hosts if path.exists()]
    with pytest.raises(Unreachable, match="CHANGED") as caught:
        HostKeys(policy).check(at, "ecdsa-sha2-nistp256", fingerprint_of(KEY))
    for word in (
        "ecdsa-sha2-nistp256",
        fingerprint_of(KEY),
        f"{at.known_hosts[file]}:1",
        "ssh-ed25519",
        fingerprint_of(OTHER),
    ):
        assert word in caught.value.reason
    assert "ssh-keygen -R" in caught.value.fix
    assert not re.search("accept-new|keyscan", caught.value.reason + caught.value.fix)
    assert [path.read_text() for path in at.known_hosts if path.exists()] == before


def test_removal_is_not_suggested_for_a_line_that_matches_several_hosts(at: Endpoint) -> None:
    path = write_known_hosts(at, "\n" + line("[10.0.0.*]:2222", OTHER))
    with pytest.raises(Unreachable, match="CHANGED") as caught:
        HostKeys("strict").check(at, "ecdsa-sha2-nistp256", fingerprint_of(KEY))
    assert "ssh-keygen -R" not in caught.value.fix
    assert f"line 2 of {path}" in caught.value.fix


@pytest.mark.parametrize("key_type", ["ssh-ed25519", "ecdsa-sha2-nistp256"])
def test_other_key_known_without_the_port_does_not_conflict(at: Endpoint, key_type: str) -> None:
    write_known_hosts(at, line("10.0.0.1", OTHER))
    with pytest.raises(Unreachable, match="is unknown") as caught:
        HostKeys("strict").check(at, key_type, fingerprint_of(KEY))
    assert "ssh-keyscan -p 2222 10.0.0.1" in caught.value.fix


def test_names_are_hashed_if_the_ssh_config_says_so(at: Endpoint) -> None:
    at = at._replace(hash_names=True)
    with pytest.raises(Unreachable, match="is unknown") as caught:
        HostKeys("strict").check(at, "ssh-ed25519", fingerprint_of(KEY))
    assert "ssh-keyscan -H -p 2222 10.0.0.1" in caught.value.fix


@pytest.mark.parametrize("policy", ["strict", "accept-new"])
def test_no_key_is_written_without_a_user_known_hosts_file(at: Endpoint, policy: Policy) -> None:
    system = at.known_hosts[1]
    endpoint = at._replace(known_hosts=(system,), can_add_keys=False)
    with pytest.raises(Unreachable) as caught:
        HostKeys(policy).check(endpoint, "ssh-ed25519", fingerprint_of(KEY))
    assert "--known-hosts" in caught.value.fix
    assert str(system) not in caught.value.fix
    assert not system.exists()
