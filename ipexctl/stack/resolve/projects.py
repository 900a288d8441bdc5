"""Index names of the packages that make a stack."""

from __future__ import annotations

from typing import Final

TORCH: Final = "torch"
IPEX: Final = "intel-extension-for-pytorch"
ONECCL: Final = "oneccl-bind-pt"
UV: Final = "uv"
OPTIONAL: Final = ("intel-openmp", "numpy")
"""torch can do without these; IPEX imports numpy."""
