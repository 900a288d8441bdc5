"""What a build makes of text: the links of the metadata, and the place of the man pages. It imports nothing of ipexctl.

README.md has relative links, which PyPI does not follow: the metadata has them with the project's home before them. If
pyproject.toml sets no home, only the words of these links stay, without the pictures; the build prints what is lost. A
release, which is built with IPEXCTL_RELEASE=1, is refused without a home, a contact and the man pages, which
`python -m tools.man_pages` writes to man/.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<is_picture>!?)(?P<text>\[[^]]*\])\((?!\w+:|#)(?P<path>[^)\s]+)\)")


class Links(MetadataHookInterface):
    """The fields of the metadata that name the project's home."""

    def update(self, metadata: dict[str, Any]) -> None:
        home, site, contact = (self.config[name].rstrip("/") for name in ("home", "site", "contact"))
        missing = [name for name, value in (("home", home), ("contact", contact)) if not value]
        if missing and os.environ.get("IPEXCTL_RELEASE"):
            sys.exit(f"no release: set {' and '.join(missing)} in pyproject.toml ([tool.hatch.metadata.hooks.custom])")
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if home:
            readme = with_absolute_links(readme, home, metadata["version"])
        else:
            lost = ", ".join(dict.fromkeys(link["path"] for link in _LINK.finditer(readme)))
            print(f"pyproject.toml sets no home: PyPI shows the words of these links alone: {lost}", file=sys.stderr)  # noqa: T201
            readme = without_links(readme)
        if not contact:
            print("pyproject.toml sets no contact: SECURITY.md leads nowhere", file=sys.stderr)  # noqa: T201
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
        metadata["urls"] = urls_of(home, site)
        metadata["authors"] = [{"email": contact}] if contact else []


def with_absolute_links(markdown: str, home: str, version: str) -> str:
    """Pages as the repository shows them at the release's tag, and pictures as they are."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link["is_picture"] else "blob"
        return f"{link['is_picture']}{link['text']}({home}/{kind}/v{version}/{link['path']})"

    return _LINK.sub(absolute, markdown)


def without_links(markdown: str) -> str:
    """Their words, and no pictures."""
    return _LINK.sub(lambda link: "" if link["is_picture"] else link["text"][1:-1], markdown)


def urls_of(home: str, site: str) -> dict[str, str]:
    urls = {"Documentation": f"{site}/"} if site else {}
    if home:
        urls |= {"Source": home, "Issues": f"{home}/issues", "Changelog": f"{home}/blob/main/CHANGELOG.md"}
    return urls


class ManPages(BuildHookInterface[Any]):
    """Installs man/ where a release has written it; a clone has none, and its help says the same."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version
        pages = sorted((Path(self.root) / "man").glob("*.1"))
        if not pages and os.environ.get("IPEXCTL_RELEASE"):
            sys.exit("no release without man pages: python -m tools.man_pages")
        build_data["shared_data"].update({str(page): f"share/man/man1/{page.name}" for page in pages})
