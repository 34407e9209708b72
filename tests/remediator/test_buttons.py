"""The remediator's forms in a real Chromium, without JavaScript too: sign in, hold, release, reset, restart by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect

from remediator.model import Decision, Reason, Storm, Verb
from remediator.web import create_app
from tests.browser import faults_of, serving, visit
from tests.remediator.fakes import World, view

Make = Callable[..., World]
SECRET = "correct horse battery staple"
HOSTILE = "'\"><img src=x onerror=alert(1)>"


@contextmanager
def opened(chromium: Browser, world: World, path: str = "", *, script: bool = True) -> Iterator[Page]:
    """The page of a remediator, at a path of it."""
    app = create_app(world.parts, lambda: True)
    with serving(app) as address, visit(chromium, f"{address}/{path}", java_script_enabled=script) as page:
        yield page


def sign_in(page: Page, secret: str | None = SECRET, name: str = "ada") -> None:
    page.fill("#who", name)
    if secret is not None:
        page.fill("#secret", secret)
    page.click("main button")


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_hold_and_release(chromium: Browser, make: Make, script: bool) -> None:
    """From the table through the sign-in to the backend; the hold is journalled with who, why and until."""
    world = make(token=SECRET)
    with opened(chromium, world, script=script) as page:
        page.click("text=Hold")
        assert page.locator("form[action$=hold]").count() == 0
        page.click("main >> text=Sign in")
        sign_in(page)
        page.fill("#hold-why", HOSTILE)
        page.select_option("#hold-for", "14400")
        page.click("button:has-text('Hold a')")
        expect(page.locator("[role=status]", has_text="a is held")).to_be_visible()
        (held,) = world.parts.journal.holds.current(world.clock.time()).values()
        assert (held.who, held.why, held.until) == ("ada", HOSTILE, world.clock.time() + 14400)
        assert HOSTILE in page.inner_text("#state")
        page.click("text=All actions")
        page.click("[aria-label='Release a']")
        page.click("button:has-text('Release a')")
        expect(page.locator("[role=status]", has_text="a is released")).to_be_visible()
        assert world.parts.journal.holds.current(world.clock.time()) == {}


def test_a_wrong_token_opens_nothing(chromium: Browser, make: Make) -> None:
    """It says so, keeps the name that was typed, and offers no buttons."""
    world = make(token=SECRET)
    app = create_app(world.parts, lambda: True)
    with serving(app) as address, chromium.new_context() as context:  # the browser logs a 401, so not by `visit`
        page = context.new_page()
        page.goto(f"{address}/sign-in?to=a")
        sign_in(page, "wrong")
        assert "not the token" in page.inner_text("[role=alert]")
        assert page.input_value("#who") == "ada"
        page.goto(f"{address}/backends/a")
        assert page.locator("form").count() == 0
        page.goto(f"{address}/sign-in?to=a")
        sign_in(page)
        expect(page).to_have_url(f"{address}/backends/a")
        page.click("text=Sign out")
        page.goto(f"{address}/backends/a")
        assert page.locator("form").count() == 0


def test_restart_by_hand_climbs_the_ladder(chromium: Browser, make: Make) -> None:
    """A busy server is not restarted for the asking; overruling that, with a reason, is journalled and done."""
    world = make(token=SECRET)
    world.exporters.says["a"] = lambda: view("busy")
    with opened(chromium, world, "sign-in?to=a") as page:
        sign_in(page)
        page.fill("#restart-why", "users complain")
        page.click("button:has-text('Restart a')")
        world.decide()
        page.reload()
        assert "the exporter says busy" in page.inner_text("#state")
        assert world.driver.calls == 0
        page.fill("#restart-why", "gives garbage")
        page.check("#over-not_confirmed")
        page.click("button:has-text('Restart a')")
        world.decide()
        page.reload()
        assert world.driver.calls == 1
        newest = page.inner_text("#orders tbody tr:first-child")
        for word in ("ada", "gives garbage", "not_confirmed", "act", "the exporter says busy"):
            assert word in newest
        assert "recovered" in page.inner_text("#attempts")


def test_reset_of_budget_and_storm(chromium: Browser, make: Make) -> None:
    """The page says that a budget is used up and that a storm goes on; a person lifts either with a reason."""
    world = make()
    journal, now = world.parts.journal, world.clock.time()
    world.alert("a")
    (waiting,) = world.waiting()
    journal.inbox.decided(waiting, Decision(Verb.REFUSE, Reason.BUDGET_EXHAUSTED, "used up"), now, latch=True)
    journal.holds.keep_storm(Storm(now - 60, now), now, None)
    with opened(chromium, world, "sign-in") as page:
        sign_in(page, None)  # on loopback, without credentials, a name is enough
        page.fill("#storm-why", "the switch is back")
        page.click("button:has-text('Lift the storm stop')")
        expect(page.locator("#summary")).to_contain_text("a person has lifted it")
        page.click("[aria-label='Reset the budget of a']")
        page.fill("#reset-why", "disk replaced")
        page.click("button:has-text('Reset the budget')")
        expect(page.locator("[role=status]", has_text="full again")).to_be_visible()
        assert "3" in page.inner_text("#state")


def test_an_attempt_under_way_shows_its_step_and_the_time_left(chromium: Browser, make: Make) -> None:
    """Called a moment ago: the driver has its deadline."""
    world = make()
    claimed = world.claimed()
    world.parts.journal.ledger.call(claimed.id, 1, world.clock.time(), world.clock.time() + 60)
    world.clock.pass_by(15)
    for path in ("", "backends/a"):
        with opened(chromium, world, path) as page:
            said = page.inner_text("#attempts .step")
            assert re.fullmatch(r"called 15 s ago, at the longest for another 45 s", said)


@pytest.mark.parametrize("path", ["", "backends/a", "sign-in", "backends/none"])
def test_nobody_is_shut_out(chromium: Browser, make: Make, path: str) -> None:
    """Every control has a name, headings follow each other, a narrow screen holds it all; signed in and not."""
    world = make()
    app = create_app(world.parts, lambda: True)
    narrow = {"width": 390, "height": 800}
    with serving(app) as address, visit(chromium, f"{address}/{path}", missing=True, viewport=narrow) as page:
        assert faults_of(page) == []
        page.goto(f"{address}/sign-in")
        sign_in(page, None, HOSTILE)
        page.goto(f"{address}/{path}")
        assert faults_of(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
