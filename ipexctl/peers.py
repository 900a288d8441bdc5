"""The advice about a slow link that `doctor --smoke` and `slow` share."""

from __future__ import annotations

from typing import Final

LOOK_AT_LINK: Final = (
    "look at the link's speed and errors{there} (ethtool IFACE, ip -s link), at the cable and the switch's port"
)
