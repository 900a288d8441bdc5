"""Tests read a version table of their own, so that a new row in the shipped one fails only what compares it with the
docs. The table is that of November 2026. Forked calls (`forked_calls.py`) read it, too; programs that a test starts
read the shipped one, `SHIPPED`.
"""

from __future__ import annotations

from pathlib import Path

from ipexctl.stack import catalog

SHIPPED = catalog.TABLE
catalog.TABLE = Path(__file__).parent / "data" / "rows.json"  # type: ignore[misc]
