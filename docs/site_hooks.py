"""Files beside docs/ that pages link to (examples, playbooks, measured programs, ARCHITECTURE.md) are part of the site.

A page's HTML marks short spans of code and options, within which a browser must not break a line. The addresses of
the site and of the repository are those of pyproject.toml. Addresses of pages that became sections lead there, and a
window of 1120 pixels shows the navigation, for which Material wants 1220.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tomllib
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

_BESIDE = re.compile(r"\]\((?:\.\./)+((?:examples|playbooks|tools/benchmarks)/[\w./-]+)\)")
_SHORT_CODE = re.compile(r"<code>(?=[^<]{1,30}</code>)")
_OPTION = re.compile(r"(?<![\w-])--\w[\w-]*(?=[^<>]*<)")
ROOT = Path(__file__).parents[1]
_MOVED = {
    "accelerate": "launchers/#accelerate",
    "exec": "commands/#exec-one-command-on-every-host",
    "team": "run/#a-team",
    "trackers": "other-runtimes/#mlflow-and-wandb",
    "what-to-do": "",
}
_WIDTHS = {"76.25em": "70em", "76.234375em": "69.984375em"}


def on_config(config: Any) -> Any:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    config.repo_url = settings["home"]
    config.repo_name = "/".join(settings["home"].split("/")[-2:])
    config.site_url = settings["site"]
    return config


def on_files(files: Any, config: Any) -> Any:
    for pattern in (
        "examples/*.py",
        "examples/*.txt",
        "examples/*.sbatch",
        "playbooks/*.yml",
        "tools/benchmarks/contenders/*.*",
    ):
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, f"files/{name}", abs_src_path=str(path)))
    text = (ROOT / "ARCHITECTURE.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "architecture.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    up = "../" * page.file.src_uri.count("/")
    markdown = markdown.replace("](../ARCHITECTURE.md)", "](architecture.md)")
    return _BESIDE.sub(rf"]({up}files/\1)", markdown)


def on_page_content(html: str, **_: Any) -> str:
    return _OPTION.sub(r'<span class="option">\g<0></span>', _SHORT_CODE.sub('<code class="short">', html))


def on_post_build(config: Any, **_: Any) -> None:
    site = Path(config.site_dir)
    for name, target in _MOVED.items():
        page = site / name / "index.html"
        page.parent.mkdir()
        page.write_text(
            f'<meta charset="utf-8"><title>Moved</title><link rel="canonical" href="../{target}">'
            f'<meta http-equiv="refresh" content="0; url=../{target}"><a href="../{target}">Moved</a>\n'
        )
    found = set()
    for path in (*site.glob("assets/stylesheets/*.css"), *site.glob("assets/javascripts/bundle.*.js")):
        text = path.read_text()
        for width, ours in _WIDTHS.items():
            found |= {width} if width in text else set()
            text = text.replace(width, ours)
        path.write_text(text)
    if found != set(_WIDTHS):
        raise PluginError(f"Material no longer has the widths {sorted(set(_WIDTHS) - found)}")
