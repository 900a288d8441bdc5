"""Every link between the pages has an existing page and heading; the site lists every page; their words are limited."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from doc_blocks import PAGES, ROOT, prose

SITE = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.M)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of the headings, as GitHub generates them."""
    found: dict[str, int] = {}
    for heading in _HEADING.findall(prose(page)):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, 0) + 1
    return frozenset(found) | {f"{anchor}-{n}" for anchor, times in found.items() for n in range(1, times)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_existing_targets(page: Path) -> None:
    broken = []
    for link in _LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            broken.append(link)
    assert not broken


def test_one_page_leads_to_each_other() -> None:
    """Those of the project's own site: docs/index.md."""
    page = ROOT / "docs/index.md"
    linked = {(page.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(prose(page))}
    assert {each for each in linked if each.suffix == ".md"} | {page} == set((ROOT / "docs").rglob("*.md"))


def test_mkdocs_nav_lists_every_page() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r"([\w/-]+\.md)", text.partition("\nnav:")[2]))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert listed == {*pages, "architecture.md"}, "the last one is made of ARCHITECTURE.md by docs/site_hooks.py"
    assert yaml.safe_load(text)["strict"] is True


MEASURED = re.compile(r"<!-- begin (\S+) -->.*?<!-- end \1 -->", re.DOTALL)
"""A table that `tools/benchmarks` writes."""
LONG = frozenset(("docs/troubleshooting.md", "docs/benchmarks.md", "docs/options.md"))
"""Made by a program, of texts and of tables that one searches in."""


def test_no_other_page_is_long_and_all_of_them_can_be_read() -> None:
    pages = {str(page.relative_to(ROOT)): MEASURED.sub("", page.read_text()) for page in SITE}
    words = {page: len(text.split()) for page, text in pages.items()}
    assert {page for page, count in words.items() if count > 1800} <= LONG
    made = ("docs/options.md", "docs/troubleshooting.md")  # by a program
    typed = {page: count for page, count in words.items() if page not in made}
    assert sum(count for page, count in typed.items() if page.startswith("docs/")) <= 32_100


def test_first_picture_is_small_loads_nothing_and_stands_still_for_who_wants_that() -> None:
    picture = (ROOT / "docs/pictures/killed-rank.svg").read_text()
    assert len(picture.encode()) < 300_000
    assert re.findall(r'(?:href|src)="(?!#)|url\(|@import|<script', picture) == []
    assert "@media (prefers-reduced-motion:no-preference){#film{animation:" in picture
    height = int(re.findall(r'viewBox="0 0 \d+ (\d+)"', picture)[0])
    (still,) = re.findall(r'<g id="film" transform="translate\(0 -(\d+)\)">', picture)
    frame = re.findall(r'^<g transform="translate\(0 \d+\)">(.*)</g>$', picture, re.M)[int(still) // height]
    rows = dict(re.findall(r'<g id="(r\d+)">(.*?)</g>', picture))
    shown = " ".join(re.sub("<[^>]+>", "", rows[name]) for name in re.findall(r'href="#(r\d+)"', frame))
    assert re.search(
        r"rank 1 on node2 was killed .* likely cause: .* see who works there: ipexctl exec -l node2", shown
    )


def test_picture_of_readme_loads_nothing_and_names_the_line_of_the_rank_that_hangs() -> None:
    picture = (ROOT / "docs/pictures/why-hang.svg").read_text()
    assert len(picture.encode()) < 30_000
    assert re.findall(r'(?:href|src)="(?!#)|url\((?!#)|@import|<script', picture) == []
    shown = re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", picture).replace("&#160;", " "))
    typed = r"\$ ipexctl run .*train\.py .*\$ ipexctl why last "
    cause = r".*likely cause: rank 1 on node2 is in next_batch at train\.py:\d+, while rank 0 on node1 waits"
    assert re.search(f"{typed}{cause}.* find what next_batch at train\\.py:\\d+ waits for", shown)
