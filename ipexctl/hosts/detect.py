"""Read a file of hosts in any format: a hostfile, or an Ansible inventory in INI or YAML.

A file that the user did not name may have 1 MB at most and must be a regular file. A file that the user named may also
be a pipe.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Final, Literal

from ipexctl.errors import UserError
from ipexctl.file_reader import FOUND_HOSTS, HOSTS, NotRegularError, TooLargeError, read_regular, read_typed
from ipexctl.hosts.host import Host
from ipexctl.hosts.hostfile import read_hostfile
from ipexctl.hosts.source import SourceFile
from ipexctl.node.common.fix import Fix

Format = Literal["hostfile", "ini", "yaml"]

_BY_SUFFIX: Final[dict[str, Format]] = {".yml": "yaml", ".yaml": "yaml", ".json": "yaml", ".ini": "ini"}
_SECTION = re.compile(r"^[ \t]*\[[A-Za-z_][^:\[\]\s#]*(?::\w+)?\][ \t\r]*(?:[#;].*)?$", re.MULTILINE)
_ANSIBLE_VARIABLE = re.compile(r"^[^#;\n]*?\sansible_\w+[ \t]*=", re.MULTILINE)
_YAML_START = re.compile(r"(?:---|%YAML|\{)")
_YAML_KEY = re.compile(r"""["']?[\w.-]+["']?:[ \t\r]*(?:#.*)?$""", re.MULTILINE)
_YAML_PART = re.compile(r"^[ \t]+(?:hosts|children|vars)[ \t]*:", re.MULTILINE)
_FIRST_LINE = re.compile(r"^[ \t]*(?=[^\s#;])", re.MULTILINE)


def detect(text: str, suffix: str = "") -> Format:
    """Return the format of a file of hosts: by its suffix, else by what its text looks like."""
    by_suffix = _BY_SUFFIX.get(suffix.lower())
    if by_suffix is not None:
        return by_suffix
    first = _FIRST_LINE.search(text)
    if first is None:
        return "hostfile"
    begin = first.end()
    if _YAML_START.match(text, begin):
        return "yaml"
    if _YAML_KEY.match(text, begin) and (_YAML_PART.search(text, begin) or text.startswith("all:", begin)):
        return "yaml"
    if _SECTION.search(text) or _ANSIBLE_VARIABLE.search(text):
        return "ini"
    return "hostfile"


def read_hosts_file(path: Path, *, shown: str | None = None, found: str = "") -> tuple[Host, ...]:
    """Return the hosts of a file in any format. Raises a UserError, or a FileError with line and column. `shown`: the
    file's name in messages. `found`: the option that would name the file; empty if the user named it
    (`source.SourceFile`)."""
    shown = str(path) if shown is None else shown
    data = _read_bytes(path, shown, found)
    text = _decode(data, path, shown)
    if text.startswith("#!"):
        raise UserError(
            f"{shown}: this is a script, and inventory scripts are not run",
            fix=Fix(
                "if you trust it, let Ansible run it and write a new file: "
                "`ansible-inventory -i {shown} --list --yaml --output new-inventory.yml`",
                shown=shown,
            ),
        )
    format_ = detect(text, path.suffix)
    read_format = read_hostfile
    if format_ != "hostfile":
        from ipexctl.hosts import inventory_files  # slow to import

        read_format = inventory_files.read_inventory_yaml if format_ == "yaml" else inventory_files.read_inventory_ini
    hosts = read_format(text, shown, base=path.parent, found=found)
    if not hosts:
        problem = "is empty" if not text.strip() else "names no host"
        raise UserError(f"{shown}: the file {problem}", fix="write one host a line, such as node1 or node[1-4]:2")
    return hosts


def _read_bytes(path: Path, shown: str, found: str) -> bytes:
    """Return the content of the file. Raises a UserError that says why it can't be read."""
    kind = FOUND_HOSTS if found else HOSTS
    try:
        return read_regular(path, kind) if found else read_typed(path, kind)
    except NotRegularError:
        raise UserError(f"{shown}: this is not a regular file", fix=f"remove it, or name it: {found}") from None
    except TooLargeError:
        raise UserError(
            f"{shown}: the file is larger than {kind.limit >> 20} MB, which no hostfile is", fix="check the path"
        ) from None
    except FileNotFoundError:
        raise UserError(
            f"{shown}: there is no such file",
            fix="check the path, or name hosts without a file: --hosts node1,node2",
        ) from None
    except IsADirectoryError:
        raise UserError(f"{shown}: this is a directory", fix="name the hostfile or inventory in it") from None
    except PermissionError:
        raise UserError(
            f"{shown}: you may not read this file",
            fix=Fix("if it has no passwords, its owner can type: `chmod a+r {path}`", path=str(path)),
        ) from None
    except ValueError:  # the message differs between Python versions
        raise UserError(f"{shown}: no path has a null character", fix="check the path") from None
    except OSError as error:
        raise UserError(f"{shown}: can't be read: {error.strerror or error}", fix="check the path") from None


def _decode(data: bytes, path: Path, shown: str) -> str:
    """Return the text of the file. Raises a UserError for a file that is binary or in UTF-16, and a FileError at the
    first character that is not UTF-8."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        new = path.with_stem(f"{path.stem}-utf8")
        raise UserError(
            f"{shown}: the file is in UTF-16, not UTF-8",
            fix=Fix("convert it to a new file: `iconv -f UTF-16 -t UTF-8 {shown} > {new}`", shown=shown, new=str(new)),
        )
    if b"\0" in data:
        raise UserError(f"{shown}: this is a binary file, not a list of hosts", fix="check the path")
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode().split("\n")
        source = SourceFile(shown, path.parent, data.decode("utf-8", "replace").split("\n"))
        fix = "save the file as UTF-8, or take it out"
        raise source.error(len(before), len(before[-1]) + 1, "a character here is not UTF-8", fix=fix) from None
