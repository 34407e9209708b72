"""The documents lead somewhere: each relative link names a file that is there, and each anchor a heading of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md", "grafana/*.md", "rules/**/*.md")
    for path in ROOT.glob(pattern)
)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """A file that was renamed takes its readers along."""
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def test_every_document_is_reached_from_the_readme() -> None:
    """What nothing leads to is not read."""
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        for link in re.findall(r"\]\(([^)\s#]+)", page.read_text()):
            if not re.match(r"[a-z]+:", link):
                left.append((page.parent / link).resolve())
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached and "runbooks" not in page.parts] == []
