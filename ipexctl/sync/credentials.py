"""Names of files and directories that hold keys, tokens or passwords. Pure."""

from __future__ import annotations

from typing import Final

DIRECTORIES: Final = frozenset({".ssh", ".aws", ".gnupg", ".kube"})
FILES: Final = frozenset({".env", ".netrc", ".git-credentials", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"})
SUFFIXES: Final = (".pem", ".key")
DOCKER_LOGIN: Final = ".docker/config.json"
PATTERNS: Final = (*sorted(DIRECTORIES), *sorted(FILES), *(f"*{suffix}" for suffix in SUFFIXES), DOCKER_LOGIN)
"""The same for other programs that copy a project."""
_DOCKER_FILE: Final = DOCKER_LOGIN.rpartition("/")[2]
_NAMES: Final = DIRECTORIES | FILES | {_DOCKER_FILE}


def is_credential(path: str, *, is_directory: bool) -> bool:
    """Whether a path has such a name, at any depth, in upper or lower case.

    Sets and suffixes, not patterns of a .gitignore: it is asked about every path of a project.
    """
    name = path[path.rfind("/") + 1 :].lower()
    if name not in _NAMES and not name.endswith(SUFFIXES):
        return False
    if is_directory:
        return name in DIRECTORIES
    return name != _DOCKER_FILE or f"/{path.lower()}".endswith(f"/{DOCKER_LOGIN}")
