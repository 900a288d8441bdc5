"""Trusted and refused host keys, and the messages about them."""

from __future__ import annotations

import base64
import re
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.host_keys import HostKeys, Policy, fingerprint, hash_name
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
        pytest.param("strict", line(hash_name("10.0.0.1"), KEY), "", {}, None, id="a hashed name"),
        ("strict", line("10.0.0.1", KEY), "", ALIAS, "is unknown"),
        ("accept-new", line("10.0.0.1", KEY) + line("[10.0.0.1]:2222", OTHER), "", {}, "CHANGED"),
        ("accept-new", "@revoked " + line("10.0.0.1", KEY), "", {}, "@revoked"),
        ("strict", "@cert-authority " + line("*", OTHER), "", {}, "certificate authority"),
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
        HostKeys(policy).check(at._replace(**changes), "ssh-ed25519", KEY)
    assert [path.read_text() for path in at.known_hosts] == [own, system]


def test_preferred_types_include_keys_known_without_the_port(at: Endpoint) -> None:
    write_known_hosts(at, line("10.0.0.1", KEY))
    assert HostKeys("strict").preferred_types(at) == ("ssh-ed25519",)


def test_unknown_key_error_has_fingerprint_and_accept_command(at: Endpoint) -> None:
    with pytest.raises(Unreachable) as caught:
        HostKeys("strict").check(at, "ssh-ed25519", KEY)
    assert fingerprint(KEY) in caught.value.reason
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
        HostKeys("strict").check(at._replace(known_hosts=(file,)), "ssh-ed25519", KEY)
    assert ("ssh-keyscan" in caught.value.fix) == is_there
    assert ("ipexctl lab list" in caught.value.fix) == (not is_there)


@pytest.mark.parametrize(
    "changes", [{"jump": "gate"}, ALIAS], ids=["a bastion is in between", "the name would be wrong"]
)
def test_keyscan_is_not_suggested_with_a_bastion_or_an_alias(at: Endpoint, changes: dict[str, Any]) -> None:
    with pytest.raises(Unreachable) as caught:
        HostKeys("strict").check(at._replace(**changes), "ssh-ed25519", KEY)
    assert "keyscan" not in caught.value.fix
    assert "ipexctl exec -l n1 --host-keys accept-new -- true" in caught.value.fix


@pytest.mark.parametrize("policy", ["strict", "accept-new"])
def test_changed_key_is_refused_with_file_and_line_of_the_old_key(at: Endpoint, policy: Policy) -> None:
    path = write_known_hosts(at, "# comment\n" + line("[10.0.0.1]:2222", OTHER))
    with pytest.raises(Unreachable, match="CHANGED") as caught:
        HostKeys(policy).check(at, "ssh-ed25519", KEY)
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
        HostKeys(policy).check(at, "ecdsa-sha2-nistp256", KEY)
    for word in (
        "ecdsa-sha2-nistp256",
        fingerprint(KEY),
        f"{at.known_hosts[file]}:1",
        "ssh-ed25519",
        fingerprint(OTHER),
    ):
        assert word in caught.value.reason
    assert "ssh-keygen -R" in caught.value.fix
    assert not re.search("accept-new|keyscan", caught.value.reason + caught.value.fix)
    assert [path.read_text() for path in at.known_hosts if path.exists()] == before


def test_removal_is_not_suggested_for_a_line_that_matches_several_hosts(at: Endpoint) -> None:
    path = write_known_hosts(at, "\n" + line("[10.0.0.*]:2222", OTHER))
    with pytest.raises(Unreachable, match="CHANGED") as caught:
        HostKeys("strict").check(at, "ecdsa-sha2-nistp256", KEY)
    assert "ssh-keygen -R" not in caught.value.fix
    assert f"line 2 of {path}" in caught.value.fix


@pytest.mark.parametrize("before", ["", "other ssh-rsa AAAA", "other ssh-rsa AAAA\n"])
def test_accept_new_appends_the_key_as_a_new_line(at: Endpoint, before: str) -> None:
    path = write_known_hosts(at, before)
    keys = HostKeys("accept-new")
    keys.check(at, "ssh-ed25519", KEY)
    keys.check(at, "ssh-ed25519", KEY)
    assert path.read_text().splitlines() == [*before.splitlines(), line("[10.0.0.1]:2222", KEY).strip()]
    with pytest.raises(Unreachable, match="CHANGED"):
        keys.check(at, "ssh-ed25519", OTHER)


def test_new_known_hosts_file_is_private(at: Endpoint) -> None:
    HostKeys("accept-new").check(at, "ssh-ed25519", KEY)
    assert at.known_hosts[0].stat().st_mode & 0o777 == 0o600
    assert at.known_hosts[0].parent.stat().st_mode & 0o777 == 0o700


def test_key_is_refused_if_known_hosts_cannot_be_written(at: Endpoint) -> None:
    nowhere = Path("/proc/ssh/known_hosts")
    with pytest.raises(Unreachable, match=r"/proc/ssh/known_hosts: No such file or directory"):
        HostKeys("accept-new").check(at._replace(known_hosts=(nowhere,)), "ssh-ed25519", KEY)


@pytest.mark.parametrize("key_type", ["ssh-ed25519", "ecdsa-sha2-nistp256"])
def test_other_key_known_without_the_port_does_not_conflict(at: Endpoint, key_type: str) -> None:
    path = write_known_hosts(at, line("10.0.0.1", OTHER))
    with pytest.raises(Unreachable, match="is unknown") as caught:
        HostKeys("strict").check(at, key_type, KEY)
    assert "ssh-keyscan -p 2222 10.0.0.1" in caught.value.fix
    HostKeys("accept-new").check(at, key_type, KEY)
    assert path.read_text().endswith(line("[10.0.0.1]:2222", KEY).replace("ssh-ed25519", key_type))


def test_names_are_hashed_if_the_ssh_config_says_so(at: Endpoint) -> None:
    at = at._replace(hash_names=True)
    with pytest.raises(Unreachable, match="is unknown") as caught:
        HostKeys("strict").check(at, "ssh-ed25519", KEY)
    assert "ssh-keyscan -H -p 2222 10.0.0.1" in caught.value.fix
    keys = HostKeys("accept-new")
    keys.check(at, "ssh-ed25519", KEY)
    keys.check(at, "ssh-ed25519", KEY)
    (written,) = at.known_hosts[0].read_text().splitlines()
    assert written.startswith("|1|")
    assert "10.0.0.1" not in written
    HostKeys("strict").check(at, "ssh-ed25519", KEY)


def test_changed_key_error_has_the_line_of_an_added_key(at: Endpoint) -> None:
    path = write_known_hosts(at, "# one\n\nother ssh-rsa AAAA")
    keys = HostKeys("accept-new")
    keys.preferred_types(at)
    path.write_text(path.read_text() + "\n# somebody else's")
    keys.check(at, "ssh-ed25519", KEY)
    with pytest.raises(Unreachable, match=rf"{path}:5 has"):
        keys.check(at, "ssh-ed25519", OTHER)


def test_concurrent_hosts_with_one_alias_accept_only_one_new_key(at: Endpoint) -> None:
    keys, at = HostKeys("accept-new"), at._replace(key_alias="cluster")

    def check(number: int) -> None:
        keys.check(at, "ssh-ed25519", b"key %d" % number)

    refused = [done.error.reason for done in fan_out(range(8), check, forks=8, cancel=Cancel()) if done.error]
    assert len(refused) == 7
    assert all("CHANGED" in reason for reason in refused)
    assert len(at.known_hosts[0].read_text().splitlines()) == 1


@pytest.mark.parametrize("policy", ["strict", "accept-new", "off"])
@pytest.mark.parametrize(
    ("revoked", "expected"),
    [
        (f"# comment\n\nssh-ed25519 {base64.b64encode(KEY).decode()} node1\n", "revoked"),
        (f"ssh-ed25519 {base64.b64encode(OTHER).decode()}\n", ""),
        ("ssh-ed25519\n", "can't be checked"),
        ("ssh-ed25519 ???\n", "can't be checked"),
        (None, "can't be checked"),
    ],
)
def test_a_revoked_key_is_refused_even_if_it_is_known(
    at: Endpoint, tmp_path: Path, policy: Policy, revoked: str | None, expected: str
) -> None:
    write_known_hosts(at, line("[10.0.0.1]:2222", KEY))
    file = tmp_path / "revoked"
    if revoked is not None:
        file.write_text(revoked)
    endpoint = at._replace(revoked_keys=(file,))
    if not expected:
        HostKeys(policy).check(endpoint, "ssh-ed25519", KEY)
        return
    with pytest.raises(Unreachable) as caught:
        HostKeys(policy).check(endpoint, "ssh-ed25519", KEY)
    assert expected in caught.value.reason
    assert str(file) in caught.value.reason


@pytest.mark.needs("ssh-keygen")
def test_a_key_in_a_revocation_list_of_ssh_keygen_is_refused(at: Endpoint, tmp_path: Path) -> None:
    keys = {}
    for name in ("bad", "good"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(command, check=True, timeout=20)
        keys[name] = base64.b64decode((tmp_path / f"{name}.pub").read_text().split()[1])
    krl = tmp_path / "krl"
    command = ["ssh-keygen", "-q", "-k", "-f", str(krl), str(tmp_path / "bad.pub")]
    subprocess.run(command, check=True, timeout=20, capture_output=True)
    endpoint = at._replace(revoked_keys=(krl,))
    with pytest.raises(Unreachable, match="revoked"):
        HostKeys("accept-new").check(endpoint, "ssh-ed25519", keys["bad"])
    HostKeys("accept-new").check(endpoint, "ssh-ed25519", keys["good"])
    krl.write_bytes(krl.read_bytes()[:20])
    with pytest.raises(Unreachable, match="can't be checked"):
        HostKeys("accept-new").check(endpoint, "ssh-ed25519", keys["good"])


@pytest.mark.parametrize("policy", ["strict", "accept-new"])
def test_no_key_is_written_without_a_user_known_hosts_file(at: Endpoint, policy: Policy) -> None:
    system = at.known_hosts[1]
    endpoint = at._replace(known_hosts=(system,), can_add_keys=False)
    with pytest.raises(Unreachable) as caught:
        HostKeys(policy).check(endpoint, "ssh-ed25519", KEY)
    assert "--known-hosts" in caught.value.fix
    assert str(system) not in caught.value.fix
    assert not system.exists()
