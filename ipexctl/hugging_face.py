"""The versions of transformers and accelerate in which IPEX and oneCCL ended, and faults did. Values only.

Read from the wheels on PyPI in November 2026. Messages take versions from here, so that all of them name the same ones.
"""

from __future__ import annotations

from typing import Final

LAST_USE_IPEX: Final = "4.56.2"
"""The last transformers with `--use_ipex`."""
WITHOUT_USE_IPEX: Final = "4.57"
LAST_DDP_CCL: Final = "5.0.0"
"""The last transformers that takes `--ddp_backend ccl`; 5.1 refuses it as an invalid choice."""
WITHOUT_DDP_CCL: Final = "5.1"
RESUMES_ON_CPU: Final = "5.18"
"""The first transformers whose Trainer loads the optimizer to `cpu`; before, to the device, such as `cpu:0`."""
INDEXED_CPU: Final = "0.29"
"""The first accelerate that gives each of several ranks on CPUs a device with an index; torch.load refuses those."""
LAST_ACCELERATE: Final = "1.12.0"
"""The last accelerate with IPEX and oneCCL."""
WITHOUT_IPEX: Final = "1.13"
"""The first accelerate without IPEX, oneCCL and `ipex_config`."""
OPTIMIZES_BY_TORCH: Final = "1.8"
"""The first accelerate that calls ipex.optimize only for an older torch; before, for every torch."""
OPTIMIZED_TORCH: Final = "2.7"
"""The first torch for which accelerate 1.8 to 1.12 no longer calls ipex.optimize."""
