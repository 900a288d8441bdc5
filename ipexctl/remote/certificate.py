"""The TLS certificate of one call, for connections from the nodes. In a submitted job `openssl` makes it, because
`cryptography` may be missing there. The key is in a private file for a moment, because Python loads keys only from
files."""

from __future__ import annotations

import datetime
import ssl
import subprocess
import tempfile
from typing import Final

from ipexctl.node.common.encrypted_socket import fingerprint_of
from ipexctl.node.common.fix import Fix
from ipexctl.remote.outcome import HostError

_DAYS: Final = 365
_ANSWER: Final = 30.0
_OPENSSL: Final = (
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
    *("-keyout", "/dev/stdout", "-subj", "/CN=ipexctl", "-days", str(_DAYS)),
)


def make_certificate() -> tuple[ssl.SSLContext, str]:
    try:
        text = _by_cryptography()
    except ModuleNotFoundError:
        text = _by_openssl()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.NamedTemporaryFile() as file:  # 0600
        file.write(text)
        file.flush()
        context.load_cert_chain(file.name)
    certificate = text[text.index(ssl.PEM_HEADER.encode()) :].decode()
    return context, fingerprint_of(ssl.PEM_cert_to_DER_cert(certificate))


def _by_cryptography() -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ipexctl")])
    day, now = datetime.timedelta(days=1), datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - day).not_valid_after(now + _DAYS * day)
    certificate = builder.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return text + certificate.public_bytes(pem)


def _by_openssl() -> bytes:
    fix = Fix("install openssl on the nodes, or cryptography in the environment: `ipexctl install --with cryptography`")
    try:
        made = subprocess.run(
            _OPENSSL, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER, check=False, umask=0o077
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or f"no answer in {_ANSWER:g} s"
        raise HostError(f"no certificate for the connections of the nodes: openssl: {reason}", fix) from None
    if made.returncode or ssl.PEM_HEADER.encode() not in made.stdout:
        lines = made.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit code {made.returncode}"
        raise HostError(f"no certificate for the connections of the nodes: openssl: {reason}", fix)
    return made.stdout
