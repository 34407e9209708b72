"""The remediator's page in a real Chromium: what a person sees of decisions, attempts, holds and hostile names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page

from remediator.model import Decision, Hold, Outcome, Reason, Storm, Verb
from remediator.web import create_app
from tests.browser import faults_of, serving, visit
from tests.remediator.fakes import World
from tests.remediator.test_alerts import one, payload
from tests.remediator.test_webhook import post

Make = Callable[..., World]
HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'


def lived_in(make: Make) -> World:
    """A remediator with a hold, a storm, a waiting request, a refused one of a hostile name, and an attempt."""
    world = make()
    journal, now = world.parts.journal, world.clock.time()
    web = create_app(world.parts, lambda: True).test_client()
    for name in (HOSTILE, "a"):
        post(web, payload(one(backend=name)))
    refused, waiting = world.waiting()
    journal.inbox.decided(refused, Decision(Verb.REFUSE, Reason.UNKNOWN_BACKEND, HOSTILE), now)
    claimed = journal.ledger.claim(waiting, "g", "command", "a is stuck.", now, newest_seen=0)
    assert claimed is not None
    journal.ledger.finish(claimed.id, Outcome.WITHDRAWN, "not_confirmed", "the exporter says busy", now)
    post(web, payload(one(backend="a")))
    (again,) = world.waiting()
    journal.inbox.decided(again, Decision(Verb.WAIT, Reason.STORM, "3 of 3 groups are in trouble at once"), now)
    journal.holds.hold(Hold("a", "ada", HOSTILE, now, now + 3600))
    journal.holds.keep_storm(Storm(now - 60, now), now, None)
    return world


@pytest.fixture(params=[True, False], ids=["script", "no-script"])
def page(request: pytest.FixtureRequest, chromium: Browser, make: Make) -> Iterator[Page]:
    """The page, with JavaScript and without."""
    world = lived_in(make)
    app = create_app(world.parts, lambda: True)
    with serving(app) as address, visit(chromium, address, java_script_enabled=request.param) as opened:
        yield opened


def test_what_a_person_reads(page: Page) -> None:
    """Mode, storm, the hold with who, why and until, the waiting request with its reason, and what was withdrawn."""
    assert "storm" in page.title()
    assert "nothing is restarted" in page.inner_text("#summary")
    backends = page.inner_text("#backends")
    for word in ("held", "ada", "in 60 min"):
        assert word in backends
    requests = page.inner_text("#requests")
    assert ("wait" in requests, "storm" in requests, "3 of 3 groups" in requests) == (True, True, True)
    assert "withdrawn" in page.inner_text("#attempts")
    assert "unknown_backend" in page.inner_text("#decisions")


def test_hostile_names_are_text(page: Page) -> None:
    """Whatever an alert or a person wrote is read, never run: `visit` holds that no script and no dialog came of it."""
    assert HOSTILE in page.inner_text("#decisions")
    assert HOSTILE in page.inner_text("#backends")
    assert page.locator("img").count() == 0


def test_nobody_is_shut_out(chromium: Browser, make: Make) -> None:
    """Headings, captions, names of controls and regions that keys reach; nothing spills over a narrow screen."""
    app = create_app(lived_in(make).parts, lambda: True)
    with serving(app) as address, visit(chromium, address, viewport={"width": 390, "height": 800}) as page:
        assert faults_of(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_an_empty_journal_says_so(chromium: Browser, make: Make) -> None:
    """The first day: every list is there and says that nothing has happened."""
    with serving(create_app(make().parts, lambda: True)) as address, visit(chromium, address) as page:
        assert page.locator(".empty").count() == 5
        assert faults_of(page) == []
