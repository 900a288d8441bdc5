"""Prints the environment that `accelerate launch --config_file FILE` gives a rank, without starting one.

Called with FILEs by a Python that has accelerate and torch; says it twice, without IPEX and oneCCL and with them.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PHYSICAL = 16
"""Cores, of whatever machine this runs on: OMP_NUM_THREADS comes from them."""
BESIDE = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


class Caught:
    """Replaces subprocess.Popen, and checks variables as strictly."""

    env: dict[str, str]
    returncode = 0

    def __init__(self, _argv: list[str], env: dict[str, str]) -> None:
        for value in env.values():
            os.fsencode(value)
        Caught.env = env

    def wait(self) -> int:
        return self.returncode


def launched(file: str) -> dict[str, str] | str:
    """The variables that differ from ours, or why accelerate refuses the file."""
    launch: Any = importlib.import_module("accelerate.commands.launch")
    launch.subprocess = SimpleNamespace(Popen=Caught, CalledProcessError=subprocess.CalledProcessError)
    try:
        launch.launch_command(launch.launch_command_parser().parse_args(["--config_file", file, "train.py"]))
    except Exception as error:  # noqa: BLE001  whatever it is, it is the answer
        return f"{type(error).__name__}: {error}".replace(f"{Path(file).parent}/", "")
    return {name: value for name, value in sorted(Caught.env.items()) if os.environ.get(name) != value}


def with_ipex(place: Path, torch: str) -> None:
    """What accelerate takes for IPEX and oneCCL: names to be found, and a version like torch's."""
    for name in ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch"):
        package = place / name
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        info = place / f"{name}-{torch}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {torch}\n")
    sys.path.insert(0, str(place))
    importlib.invalidate_caches()


def main() -> None:
    psutil: Any = importlib.import_module("psutil")
    psutil.cpu_count = lambda logical=True: PHYSICAL * (1 + logical)
    place, *files = sys.argv[1:]
    said = {"bare": {Path(file).stem: launched(file) for file in files}}
    torch: Any = importlib.import_module("torch")
    with_ipex(Path(place), torch.__version__.partition("+")[0])
    said["ipex"] = {Path(file).stem: launched(file) for file in files}
    print(json.dumps(said))


if __name__ == "__main__":
    for name in BESIDE:
        os.environ.pop(name, None)
    main()
