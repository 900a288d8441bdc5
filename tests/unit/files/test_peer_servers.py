"""The choice of the host that serves files to a target."""

from __future__ import annotations

import contextlib
import threading

import pytest

from fakes import FakeSession
from ipexctl.files import distribute, store_client
from ipexctl.files.distribute import Servers
from ipexctl.files.store_client import Delivery, StoredFile, StoreLocation
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import Cancelled

FILES = (StoredFile("a" * 64, "one.whl", 1),)


@pytest.mark.parametrize(("lacking", "waits"), [((), False), (FILES, True)])
def test_target_waits_for_a_busy_server_only_if_it_lacks_files(
    lacking: tuple[StoredFile, ...], waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distribute, "_PATIENCE", 0.1)
    monkeypatch.setattr(store_client, "missing", lambda *_, **__: lacking)
    source, target, cancel = Host("a", "a"), Host("b", "b"), Cancel()
    servers = Servers(FILES, cancel)
    servers.add(StoreLocation(source, "python3", "/h/wheels", "10.0.0.1"), FakeSession(source))
    servers._servers[0].clients = distribute._MAX_CLIENTS
    location = StoreLocation(target, "python3", "/h/wheels", "10.0.0.2")
    delivery = Delivery(location, FakeSession(target), FILES, None, cancel, lambda *_: None)
    sending = threading.Thread(target=_send, args=(servers, delivery), daemon=True)
    sending.start()
    sending.join(1)
    assert sending.is_alive() == waits
    assert delivery.had_all != waits
    cancel.throw()
    sending.join(3)
    assert not sending.is_alive()


def _send(servers: Servers, delivery: Delivery) -> None:
    with contextlib.suppress(Cancelled):
        servers.send(delivery)
