"""Checks a host key against RevokedHostKeys of the ssh config: a text file of public keys, or a KRL of ssh-keygen."""

from __future__ import annotations

import base64
import subprocess
import tempfile
from typing import TYPE_CHECKING, Final

from ipexctl.remote.known_hosts import fingerprint
from ipexctl.remote.outcome import Unreachable

if TYPE_CHECKING:
    from pathlib import Path

_KRL: Final = b"SSHKRL\n\0"


def check_revoked(path: Path, key_type: str, key: bytes) -> None:
    """Raise Unreachable if the file has that key. Like ssh, trust no key if the file can't be read."""
    try:
        data = path.read_bytes()
        is_revoked = _is_in_krl(path, key_type, key) if data.startswith(_KRL) else _is_in_text(data, key)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        problem = (isinstance(error, OSError) and error.strerror) or str(error)
        raise Unreachable(
            f"its host key can't be checked: {path} (RevokedHostKeys of the ssh config): {problem}",
            "correct that file, or its name in the ssh config",
        ) from None
    if is_revoked:
        raise Unreachable(
            f"its host key {fingerprint(key)} is revoked by {path} (RevokedHostKeys of the ssh config)",
            "do not connect; ask the administrator of that machine",
        )


def _is_in_text(data: bytes, key: bytes) -> bool:
    """Raises a ValueError for a line that is no key: it may be the key that was meant to be revoked."""
    lines = [line.split() for line in data.splitlines() if line.strip() and not line.lstrip().startswith(b"#")]
    if any(len(fields) < 2 for fields in lines):
        raise ValueError("a line is no public key")
    return key in [base64.b64decode(fields[1], validate=True) for fields in lines]


def _is_in_krl(path: Path, key_type: str, key: bytes) -> bool:
    with tempfile.NamedTemporaryFile(suffix=".pub") as file:
        file.write(f"{key_type} {base64.b64encode(key).decode()}\n".encode())
        file.flush()
        argv = ["ssh-keygen", "-Q", "-f", str(path), file.name]
        ran = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
    if ran.returncode and b"REVOKED" not in ran.stdout:
        raise ValueError(ran.stderr.decode(errors="replace").strip() or f"ssh-keygen: exit code {ran.returncode}")
    return ran.returncode != 0
