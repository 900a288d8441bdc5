"""What a build makes: the links of its metadata, and the man pages `ipexctl.1` and one for each command.

README.md has relative links, which PyPI does not follow: the metadata has them with the project's home before them. If
pyproject.toml sets no home, only the words of these links stay, without the pictures; the build prints what is lost. A
release, which is built with IPEXCTL_RELEASE=1, is refused without a home and a contact.

click's own help goes through a formatter that writes roff in place of lines, so a page has the panels, options and
defaults of `--help` and nothing else. The commands are those of the source: it is imported with typer alone.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from typer.main import get_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


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
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":  # an editable install shows the help
            return
        self._directory = tempfile.TemporaryDirectory()
        source = Path(self._directory.name)
        sys.path.insert(0, self.root)
        for name, text in pages().items():
            (source / name).write_text(text, encoding="utf-8")
            build_data["shared_data"][str(source / name)] = f"share/man/man1/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del build_data, artifact_path
        if version == "standard":
            self._directory.cleanup()


class RoffFormatter(typer.Context.formatter_class):  # type: ignore[misc, valid-type]  # of typer's own click
    """Takes what click's formatter takes, and has roff as its value."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        del prefix
        self.write(f".SH SYNOPSIS\n.B {_roff(prog)}\n{_roff(args)}\n")

    def write_heading(self, heading: str) -> None:
        self.write(f".SH {_roff(heading.upper())}\n")

    def write_paragraph(self) -> None:
        """A section and a paragraph begin by themselves."""

    def write_text(self, text: str) -> None:
        paragraphs = [" ".join(lines.split()) for lines in re.split(r"\n\s*\n", text.replace("\b", ""))]
        self.write("\n.PP\n".join(_roff(paragraph) for paragraph in paragraphs) + "\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        del col_max, col_spacing
        for term, text in rows:
            self.write(f".TP\n.B {_roff(term.strip())}\n{_roff(' '.join(text.split()))}\n")

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        self.write_heading(name)
        yield


def _roff(text: str) -> str:
    """Text in which roff sees no command, and keeps hyphens as they are typed."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped


def page(command: Any, name: str, text: str, more: Sequence[str] = ()) -> str:
    formatter = RoffFormatter()
    title = name.replace(" ", "-")
    formatter.write(f'.TH {title.upper()} 1 "" "ipexctl" "ipexctl"\n.SH NAME\n{_roff(title)} \\- {_roff(text)}\n')
    _write(formatter, command, name)
    for sub, found in sorted(getattr(command, "commands", {}).items()):
        _write(formatter, found, f"{name} {sub}")
    pages = ", ".join(f"\\fB{_roff(other)}\\fR(1)" for other in more)
    return f"{formatter.getvalue()}.SH SEE ALSO\n{pages}\n"


def _write(formatter: RoffFormatter, command: Any, name: str) -> None:
    context = command.context_class(command, info_name=name, help_option_names=["-h", "--help"])
    command.format_usage(context, formatter)
    formatter.write_heading("Description")
    command.format_help_text(context, formatter)
    command.format_options(context, formatter)
    if command.epilog:
        formatter.write_heading("Example")
        formatter.write_text(command.epilog.removeprefix("Example: "))


def pages() -> dict[str, str]:
    from ipexctl.commands.app import app, commands, load_command

    names = [f"ipexctl-{name}" for name in commands()]
    root = page(get_command(app), "ipexctl", "one PyTorch job on the machines you can ssh to", names)
    found = {
        f"ipexctl-{name}.1": page(load_command(name), f"ipexctl {name}", text.rstrip("."), ["ipexctl"])
        for name, text in commands().items()
    }
    return {"ipexctl.1": root, **found}
