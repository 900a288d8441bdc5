"""Tiny wheels that stand in for a stack's: valid to every installer, and they behave as the real ones do when imported.

Made in milliseconds, so that a test makes its own. `write_wheel` writes any wheel, `write_stack` a whole stack.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

STAND_INS = Path(__file__).parent / "stand_ins"
_THEN = (2026, 1, 1, 0, 0, 0)


def write_wheel(
    directory: Path,
    name: str,
    version: str,
    *,
    files: Mapping[str, str | bytes] | None = None,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
    scripts: Mapping[str, str] | None = None,
    data: Mapping[str, str | bytes] | None = None,
    entry_points: Mapping[str, str] | None = None,
    requires_python: str | None = None,
    pad: int = 0,
) -> Path:
    """A wheel. `scripts` and `data` go to `bin/` and to the environment's root; `pad` bytes can't be compressed."""
    escaped = name.replace("-", "_").replace(".", "_")
    info, extra = f"{escaped}-{version}.dist-info", f"{escaped}-{version}.data"
    contents: dict[str, str | bytes] = dict(files or {f"{escaped}.py": f"__version__ = {version!r}\n"})
    contents |= {f"{extra}/scripts/{path}": text for path, text in (scripts or {}).items()}
    contents |= {f"{extra}/data/{path}": text for path, text in (data or {}).items()}
    if pad:
        contents[f"{escaped}_pad.bin"] = os.urandom(pad)
    if entry_points:
        lines = [f"{command} = {target}" for command, target in entry_points.items()]
        contents[f"{info}/entry_points.txt"] = "[console_scripts]\n" + "\n".join(lines) + "\n"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    metadata += [f"Requires-Python: {requires_python}"] if requires_python else []
    contents[f"{info}/METADATA"] = "\n".join(metadata) + "\n"
    pure = "false" if "linux" in tag else "true"
    tags = "".join(f"Tag: {python}-{'-'.join(tag.split('-')[1:])}\n" for python in tag.split("-")[0].split("."))
    contents[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tiny\nRoot-Is-Purelib: {pure}\n{tags}"
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"{escaped}-{version}-{tag}.whl"
    record = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED if pad else zipfile.ZIP_DEFLATED) as archive:
        for path, text in contents.items():
            content = text.encode() if isinstance(text, str) else text
            digest = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(content)}")
            _add(archive, path, content, runs="/bin/" in path or "/scripts/" in path or path.endswith(".sh"))
        _add(archive, f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]).encode())
    return wheel


_BACKEND = """
import pathlib
import tiny_wheels

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    info = pathlib.Path(directory, "{name}-{version}.dist-info")
    info.mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return info.name

def build_wheel(directory, config_settings=None, metadata_directory=None):
    {before}
    return tiny_wheels.write_wheel(pathlib.Path(directory), "{name}", "{version}").name
"""


def write_sdist(directory: Path, name: str, version: str, *, before: str = "pass") -> Path:
    """A source archive with a backend of its own, which needs no other package; `before` runs in its build."""
    files = {
        "tiny_wheels.py": Path(__file__).read_text(),
        "backend.py": _BACKEND.format(name=name, version=version, before=before),
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    archive = directory / f"{name}-{version}.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(text.encode())
            packed.addfile(entry, io.BytesIO(text.encode()))
    return archive


def _add(archive: zipfile.ZipFile, path: str, content: bytes, *, runs: bool = False) -> None:
    entry = zipfile.ZipInfo(path, _THEN)
    entry.external_attr = (0o100755 if runs else 0o100644) << 16
    entry.compress_type = archive.compression
    archive.writestr(entry, content)


def write_torch(directory: Path, version: str = "2.8.0", *, python: str = "cp311", pad: int = 0) -> Path:
    """As much of torch as `verify` uses, with collectives over a socket."""
    return write_wheel(
        directory,
        "torch",
        version,
        files=_package("torch", version=version),
        requires=["typing-extensions"],
        tag=f"{python}-{python}-manylinux_2_28_x86_64",
        pad=pad,
    )


def write_ipex(
    directory: Path, version: str = "2.8.0", *, torch: str | None = None, python: str = "cp311", pad: int = 0
) -> Path:
    """IPEX: refuses another torch than the one it was built for, as clumsily as the real one."""
    built_for = ".".join((torch or version).split(".")[:2])
    return write_wheel(
        directory,
        "intel_extension_for_pytorch",
        version,
        files=_package("intel_extension_for_pytorch", version=version, built_for=built_for),
        requires=["psutil"],
        tag=f"{python}-{python}-manylinux_2_28_x86_64",
        pad=pad,
    )


def write_oneccl(
    directory: Path,
    version: str = "2.7.0",
    *,
    torch: str | None = None,
    module: str = "oneccl_bindings_for_pytorch",
    python: str = "cp311",
    bundled_mpi: bool = True,
    pad: int = 0,
) -> Path:
    """The bindings, in the bundled layout with setvars.sh and an MPI, or without MPI and with vars.sh."""
    built_for = ".".join((torch or version).split(".")[:2])
    files = _package("oneccl_bindings_for_pytorch", version=version, built_for=built_for)
    files = {path.replace("oneccl_bindings_for_pytorch", module): text for path, text in files.items()}
    files[f"{module}/lib/libccl.so.1"] = "no library\n"
    if bundled_mpi:
        files[f"{module}/env/setvars.sh"] = _stand_in("setvars.sh")
        files |= {f"{module}/opt/mpi/{path}": text for path, text in _mpi().items()}
    else:
        files[f"{module}/env/vars.sh"] = _stand_in("vars.sh")
    return write_wheel(
        directory, "oneccl_bind_pt", version, files=files, tag=f"{python}-{python}-manylinux_2_28_x86_64", pad=pad
    )


def write_impi(directory: Path, version: str = "2021.14.2", *, pad: int = 0) -> Path:
    """impi-rt: mpirun and mpiexec.hydra in bin/, a library and a provider in lib/."""
    return write_wheel(
        directory,
        "impi_rt",
        version,
        files={"impi_rt_notes.txt": "Intel MPI\n"},
        data=_mpi(),
        tag="py2.py3-none-manylinux_2_28_x86_64",
        pad=pad,
    )


def write_stack(
    directory: Path,
    torch: str = "2.8.0",
    ipex: str | None = "2.8.0",
    oneccl: str | None = None,
    python: str = "cp311",
    *,
    impi: str | None = "2021.14.2",
    module: str = "oneccl_bindings_for_pytorch",
    pad: int = 0,
) -> list[Path]:
    """A whole stack, with what it depends on; `pad` bytes are added to torch."""
    wheels = [
        write_torch(directory, torch, python=python, pad=pad),
        write_wheel(directory, "typing_extensions", "4.15.0"),
        write_wheel(directory, "numpy", "2.3.0", entry_points={"f2py": "numpy:main"}, files={"numpy.py": _NUMPY}),
    ]
    if ipex:
        wheels += [write_ipex(directory, ipex, python=python), write_wheel(directory, "psutil", "7.1.0")]
        wheels += [write_wheel(directory, "setuptools", "80.9.0")]
        wheels += [write_wheel(directory, "intel_openmp", "2025.2.0", data={"lib/libiomp5.so": "no library\n"})]
    if oneccl:
        wheels.append(write_oneccl(directory, oneccl, python=python, module=module))
    if impi:
        wheels.append(write_impi(directory, impi))
    return wheels


def corrupt(wheel: Path) -> Path:
    """Change one byte in its middle: the same size, another hash."""
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 0xFF
    wheel.write_bytes(content)
    return wheel


_NUMPY = "__version__ = '2.3.0'\n\n\ndef main():\n    print('f2py of', __file__)\n"


def _mpi() -> dict[str, str | bytes]:
    return {
        "bin/mpirun": '#!/bin/sh\nmpiexec.hydra "$@"\n',
        "bin/mpiexec.hydra": _stand_in("mpiexec.hydra"),
        "lib/libmpi.so.12": "no library\n",
        "lib/libfabric.so.1": "no library\n",
        "lib/libtcp-fi.so": "no provider\n",
    }


def _package(name: str, **values: str) -> dict[str, str | bytes]:
    """The files of a stand-in, with `@key@` filled in."""
    files: dict[str, str | bytes] = {}
    for path in sorted((STAND_INS / name).rglob("*.py.in")):
        text = path.read_text()
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        files[str(path.relative_to(STAND_INS))[:-3]] = text
    return files


def _stand_in(name: str) -> str:
    return (STAND_INS / name).read_text()
