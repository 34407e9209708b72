"""A real Chromium for the pages of both programs: Debian's own, driven by Playwright, which downloads nothing.

The fixture `chromium` is one for the whole run, known everywhere by tests/conftest.py; `visit` opens a page in it
and holds that nothing went wrong on it, unseen: no dialog, no error, nothing that its security policy refused.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

from stallwatch.serving import Server
from tests.realparts import need

WAIT_MS = 20_000
"""The longest wait for what must come: a machine may be busy; nothing is ever waited for that must not come."""
_REFUSALS = """
window.refused = [];
document.addEventListener("securitypolicyviolation", (e) => {
  window.refused.push(`${e.violatedDirective} ${e.blockedURI}`);
});
"""


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for the whole run."""
    path = shutil.which("chromium")
    need("Chromium", None if path else "not installed (Debian's package chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextlib.contextmanager
def serving(app: Flask) -> Iterator[str]:
    """Serve an application as its program does; yields its address."""
    server = Server(app, "127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.stop()


@contextlib.contextmanager
def visit(browser: Browser, address: str, *, missing: bool = False, **context: Any) -> Iterator[Page]:
    """Open an address in a context of its own; at the end, hold that nothing went wrong on any page of it.

    `missing`: the address is none, and that its status is 404 is no fault.
    """
    wrong: list[str] = []

    def refuse(dialog: Dialog) -> None:
        wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    with contextlib.closing(browser.new_context(**context)) as opened:
        opened.set_default_timeout(WAIT_MS)
        opened.add_init_script(_REFUSALS)
        page = opened.new_page()
        page.on("dialog", refuse)
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on("requestfailed", lambda request: wrong.append(f"{request.url}: {request.failure}"))
        page.goto(address)
        yield page
        if context.get("java_script_enabled", True):
            wrong += page.evaluate("window.refused")
    # Whoever leaves a page ends the request with which it keeps itself fresh.
    allowed = ("net::ERR_ABORTED", *(["status of 404"] if missing else []))
    left = [text for text in wrong if not any(word in text for word in allowed)]
    assert left == [], left


_FAULTS = """() => {
  const faults = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  const label = (e) => (e.labels && e.labels[0] ? e.labels[0].innerText : "");
  const name = (e) => (e.getAttribute("aria-label") || e.innerText || label(e)).trim();
  const hold = (selector, good, what) => {
    for (const e of all(selector)) if (!good(e)) faults.push(`${what}: ${e.outerHTML.slice(0, 200)}`);
  };
  const ids = all("[id]").map((e) => e.id);
  const levels = all("h1, h2, h3, h4").map((e) => Number(e.tagName[1]));
  if (document.documentElement.lang !== "en") faults.push("no language");
  if (new Set(ids).size !== ids.length) faults.push("an id twice");
  if (levels.filter((n) => n === 1).length !== 1 || levels[0] !== 1) faults.push("not one first heading");
  if (levels.some((n, i) => i && n > levels[i - 1] + 1)) faults.push("a heading leaps");
  for (const tag of ["main", "header", "nav"]) if (!document.querySelector(tag)) faults.push(`no ${tag}`);
  hold("a[href], button:not([hidden]), select, input:not([type=hidden]), summary, [role=region]", name, "no name");
  hold("svg", (e) => e.getAttribute("aria-hidden") === "true", "a picture that is read out");
  hold("thead th", (e) => e.scope === "col", "a title without scope");
  hold("tbody tr:not(.why)", (e) => e.querySelector("th[scope=row]"), "a row without a title");
  hold("table", (e) => e.caption, "a table without caption");
  hold("time", (e) => /^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z$/.test(e.dateTime), "a time that is none");
  hold(".scroll", (e) => e.tabIndex === 0, "a region that no key reaches");
  hold(".tag", (e) => e.querySelector("svg") && e.textContent.trim(), "colour alone");
  return faults;
}"""


def faults_of(page: Page) -> list[str]:
    """What would keep somebody with a screen reader, a keyboard or other colours out; empty: nothing was found."""
    return list(page.evaluate(_FAULTS))
