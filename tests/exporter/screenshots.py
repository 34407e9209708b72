"""The pictures in docs/images, taken of a fleet of every verdict: `python -m tests.exporter.screenshots [FOLDER]`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from exporter.web import create_app
from tests.browser import serving
from tests.exporter.fleets import Still, all_verdicts

FOLDER = Path(__file__).parents[2] / "docs" / "images"
SHOTS = (
    ("exporter", "", 1280, 900, "light"),
    ("exporter-dark", "", 1280, 900, "dark"),
    ("exporter-backend", "backends/gb10-a", 1280, 1000, "light"),
    ("exporter-narrow", "", 390, 800, "dark"),
)
"""Name, page, width and height in pixels, colour scheme."""


def main(folder: Path = FOLDER) -> None:
    """Take every picture."""
    fleet = Still(all_verdicts())
    app = create_app(fleet, monotonic=fleet.monotonic, wall=fleet.wall)
    with serving(app) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, path, width, height, scheme in SHOTS:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(f"{address}/{path}")
            page.screenshot(path=folder / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
