"""The machines' own network: a namespace with a bridge, and a link from here. It exists as long as a machine does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from .programs import run

NETWORK_NAMESPACE: Final = "ipexctl-machines"
NUMBERS: Final = range(1, 9)
"""Of machines."""
_LINK: Final = "ipexctl-vm"
INSTALL_ADDRESS: Final = "10.79.0.10"
"""Where the root of an image is, while an environment is installed into it."""


def address_of(number: int) -> tuple[str, str]:
    return f"10.79.0.{10 + number}", f"fd79::{10 + number}"


def tap_of(number: int) -> str:
    return f"tap{number}"


def exists() -> bool:
    return any(line.split()[:1] == [NETWORK_NAMESPACE] for line in run("ip", "netns", "list").splitlines())


def up() -> None:
    inside = ("ip", "-n", NETWORK_NAMESPACE)
    run("ip", "netns", "add", NETWORK_NAMESPACE)
    run("ip", "link", "add", _LINK, "type", "veth", "peer", "name", "outside", "netns", NETWORK_NAMESPACE)
    run("ip", "addr", "add", "10.79.0.1/24", "dev", _LINK)
    run("ip", "-6", "addr", "add", "fd79::1/64", "dev", _LINK, "nodad")
    run("ip", "link", "set", _LINK, "up")
    run(*inside, "link", "add", "br0", "type", "bridge")
    taps = [tap_of(number) for number in NUMBERS]
    for tap in taps:
        run(*inside, "tuntap", "add", tap, "mode", "tap")
    for port in ("outside", *taps):
        run(*inside, "link", "set", port, "master", "br0", "up")
    for name in ("lo", "br0"):
        run(*inside, "link", "set", name, "up")


def down() -> None:
    run("ip", "link", "del", _LINK)
    run("ip", "netns", "del", NETWORK_NAMESPACE)


@contextlib.contextmanager
def network() -> Iterator[None]:
    """The network, which is removed afterwards unless it was there before."""
    is_new = not exists()
    if is_new:
        up()
    try:
        yield
    finally:
        if is_new:
            down()
