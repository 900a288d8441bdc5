"""The TLS certificate of one call, for connections from the nodes. The key is in a private file for a moment, because
Python loads keys only from files."""

from __future__ import annotations

import datetime
import ssl
import tempfile
from typing import Final

from ipexctl.node.common.encrypted_socket import fingerprint_of

_DAYS: Final = 365


def make_certificate() -> tuple[ssl.SSLContext, str]:
    text = _key_and_certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.NamedTemporaryFile() as file:  # 0600
        file.write(text)
        file.flush()
        context.load_cert_chain(file.name)
    certificate = text[text.index(ssl.PEM_HEADER.encode()) :].decode()
    return context, fingerprint_of(ssl.PEM_cert_to_DER_cert(certificate))


def _key_and_certificate() -> bytes:
    from cryptography import x509  # few calls are over srun
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
