"""Which host keys are trusted, and what is said when one isn't."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ipexctl.remote.host_keys import HostKeys
from ipexctl.remote.known_hosts import fingerprint
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.ssh_config import Endpoint

if TYPE_CHECKING:
    from ipexctl.remote.host_keys import Policy

KEY, OTHER = b"its key", b"another key"


def line(name: str, key: bytes) -> str:
    return f"{name} ssh-ed25519 {base64.b64encode(key).decode()}\n"


@pytest.fixture
def at(tmp_path: Path) -> Endpoint:
    return Endpoint("10.0.0.1", 2222, "me", known_hosts=(tmp_path / "ssh" / "known_hosts", tmp_path / "global"))


def stored(at: Endpoint, text: str) -> Path:
    path = at.known_hosts[0]
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_known_key_passes_from_either_file(at: Endpoint) -> None:
    at.known_hosts[1].write_text(line("[10.0.0.1]:2222", KEY))
    HostKeys("strict").check(at, "ssh-ed25519", KEY)


def test_an_unknown_key_names_its_fingerprint_and_the_command_that_accepts_it(at: Endpoint) -> None:
    with pytest.raises(Unreachable) as caught:
        HostKeys("strict").check(at, "ssh-ed25519", KEY)
    assert fingerprint(KEY) in caught.value.reason
    assert f"ssh-keyscan -p 2222 10.0.0.1 >> {at.known_hosts[0]}" in caught.value.fix
    assert not at.known_hosts[0].exists()


def test_behind_a_bastion_keyscan_is_no_way(at: Endpoint) -> None:
    with pytest.raises(Unreachable) as caught:
        HostKeys("strict").check(replace(at, jump="gate"), "ssh-ed25519", KEY)
    assert "keyscan" not in caught.value.fix
    assert "--host-keys accept-new" in caught.value.fix


@pytest.mark.parametrize("policy", ["strict", "accept-new"])
def test_a_changed_key_never_passes_and_says_where_the_old_one_stands(at: Endpoint, policy: Policy) -> None:
    path = stored(at, "# comment\n" + line("[10.0.0.1]:2222", OTHER))
    with pytest.raises(Unreachable, match="CHANGED") as caught:
        HostKeys(policy).check(at, "ssh-ed25519", KEY)
    assert f"{path}:2" in caught.value.reason
    assert f"ssh-keygen -R '[10.0.0.1]:2222' -f {path}" in caught.value.fix


@pytest.mark.parametrize("before", ["", "other ssh-rsa AAAA", "other ssh-rsa AAAA\n"])
def test_accept_new_remembers_the_key_on_a_line_of_its_own(at: Endpoint, before: str) -> None:
    path = stored(at, before)
    keys = HostKeys("accept-new")
    keys.check(at, "ssh-ed25519", KEY)
    keys.check(at, "ssh-ed25519", KEY)
    assert path.read_text().splitlines() == [*before.splitlines(), line("[10.0.0.1]:2222", KEY).strip()]
    with pytest.raises(Unreachable, match="CHANGED"):
        keys.check(at, "ssh-ed25519", OTHER)


def test_a_file_made_for_the_first_key_is_ours_alone(at: Endpoint) -> None:
    HostKeys("accept-new").check(at, "ssh-ed25519", KEY)
    assert at.known_hosts[0].stat().st_mode & 0o777 == 0o600
    assert at.known_hosts[0].parent.stat().st_mode & 0o777 == 0o700


def test_a_key_that_cannot_be_written_down_is_not_accepted(at: Endpoint) -> None:
    nowhere = Path("/proc/ssh/known_hosts")
    with pytest.raises(Unreachable, match="can't be remembered: /proc/ssh/known_hosts: No such file or directory"):
        HostKeys("accept-new").check(replace(at, known_hosts=(nowhere,)), "ssh-ed25519", KEY)


def test_a_device_is_read_as_no_known_hosts_at_all(at: Endpoint) -> None:
    with pytest.raises(Unreachable, match="is unknown"):
        HostKeys("strict").check(replace(at, known_hosts=(Path("/dev/zero"),)), "ssh-ed25519", KEY)


def test_off_asks_nothing_and_stores_nothing(at: Endpoint) -> None:
    HostKeys("off").check(at, "ssh-ed25519", KEY)
    assert not at.known_hosts[0].exists()


def test_without_a_choice_the_ssh_config_decides(at: Endpoint) -> None:
    HostKeys(None).check(replace(at, strict="off"), "ssh-ed25519", KEY)
    with pytest.raises(Unreachable):
        HostKeys(None).check(at, "ssh-ed25519", KEY)
    with pytest.raises(Unreachable):
        HostKeys("strict").check(replace(at, strict="off"), "ssh-ed25519", KEY)


def test_a_key_known_only_to_an_authority_is_said_to_be_so(at: Endpoint) -> None:
    stored(at, "@cert-authority " + line("*", OTHER))
    with pytest.raises(Unreachable, match="certificate authority"):
        HostKeys("strict").check(at, "ssh-ed25519", KEY)
