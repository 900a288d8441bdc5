"""An HTTP server on 127.0.0.1, and a certificate for it, signed by itself."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from hub_server import QuietServer
from needs import require


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler], certificate: Path | None = None) -> Iterator[str]:
    """The address of a server: `127.0.0.1:PORT`. With a certificate it speaks TLS."""
    server = QuietServer(("127.0.0.1", 0), handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def write_certificate(directory: Path) -> Path:
    """One file with the certificate and its key; skips the test where there is no openssl."""
    key, cert, both = (directory / name for name in ("key.pem", "cert.pem", "both.pem"))
    line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=index"
    argv = [*line.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    require("openssl")
    subprocess.run(argv, capture_output=True, check=True)
    both.write_text(key.read_text() + cert.read_text())
    return both
