"""A certificate for 127.0.0.1, signed by itself."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def write_certificate(directory: Path) -> Path:
    """One file with the certificate and its key; skips the test where there is no openssl."""
    key, cert, both = (directory / name for name in ("key.pem", "cert.pem", "both.pem"))
    line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=index"
    argv = [*line.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(argv, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no openssl to make a certificate with")
    both.write_text(key.read_text() + cert.read_text())
    return both
