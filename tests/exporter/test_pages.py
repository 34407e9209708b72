"""The exporter's pages in a real Chromium: what is said of each verdict, by keyboard, without script, to anybody."""

from __future__ import annotations

import dataclasses
import html
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from playwright.sync_api import Browser, Page, expect

from exporter.model import Verdict
from exporter.pages.table import COLUMNS, PAGE_ROWS
from exporter.pages.words import ASKS, LIMITS, LOOKS
from exporter.snapshot import Snapshot
from exporter.web import create_app
from stallwatch.ui import CONTENT_SECURITY_POLICY
from tests.browser import faults_of, serving, visit
from tests.exporter.fleets import NOW, Still, Story, all_verdicts, many, moving, seen, standing, stories, ticks, vllm

RUNBOOKS = Path(__file__).parents[2] / "rules" / "runbooks"
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
HOSTILE_NAME = "'\"><img src=x onerror=alert(3)><b>"  # no slash: an address has none inside a name


@pytest.fixture(scope="module")
def snapshots() -> list[Snapshot]:
    """A backend of every verdict."""
    return all_verdicts()


@pytest.fixture
def fleet(snapshots: list[Snapshot]) -> Still:
    """The same as a fleet of its own, which a test may change."""
    return Still(snapshots)


@pytest.fixture
def client(fleet: Still) -> FlaskClient:
    """The exporter's application without a browser."""
    return create_app(
        fleet, monotonic=fleet.monotonic, wall=fleet.wall, runbooks="https://run.example/b/"
    ).test_client()


@pytest.fixture
def site(fleet: Still) -> Iterator[str]:
    """The address of the exporter as it is served."""
    with serving(create_app(fleet, monotonic=fleet.monotonic, wall=fleet.wall)) as address:
        yield address


def names(page: Page) -> list[str]:
    """The backends in the table, from the top."""
    return page.locator("tbody th a").all_inner_texts()


def get(client: FlaskClient, address: str) -> str:
    """A page's text as a person without a browser's help would read it."""
    answer = client.get(address)
    assert answer.status_code == 200
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", answer.get_data(as_text=True))))


SAID = {
    "stuck": "210 of 180 s; Rank 0 has stood still for 210 s (limit 180 s); 3 short requests in a row got not one byte",
    "down": "not measured; 24 h; Connections have been refused for 75 s (limit 60 s)",
    "failing": "server error; answers were server errors",
    "unreachable": "not measured; /health answers, /metrics does not",
    "stalled": "95 of 180 s; Rank 0 has stood still for 95 s (suspected from 60 s)",
    "blocked": "120 of 180 s; they wait for a peer",
    "unmeasured": "not measured; never; not known; status 404",
    "starting": "40 s; A new process that has neither worked nor answered yet",
    "paused": "0 of 180 s; The server says that it is asleep",
    "proxy": "not measured; so only /v1/models is read",
    "busy": "9 steps/s; 6; 1; 25 h",
    "idle": "0 of 180 s; answered; 49 s ago",
}
"""What the row of each verdict says."""


def test_every_verdict_in_the_table(chromium: Browser, site: str) -> None:
    """The worst first, each with its word, a shape of its own, and what it rests on."""
    told = stories()
    with visit(chromium, site) as page:
        assert names(page) == [told[verdict.value].name for verdict in LOOKS]
        shapes = page.locator("tbody .tag use").evaluate_all("(all) => all.map((use) => use.getAttribute('href'))")
        assert len(set(shapes)) == len(shapes) == len(Verdict)
        for shape in shapes:
            expect(page.locator(f"symbol{shape}")).to_have_count(1)
        for verdict, words in SAID.items():
            row = page.locator("tr.row", has=page.get_by_role("link", name=told[verdict].name, exact=True))
            expect(row.locator(".tag")).to_have_text(verdict)
            said = row.inner_text()
            if LOOKS[Verdict(verdict)].tone != "good":
                said += row.locator("xpath=following-sibling::tr[1]").inner_text()
            for part in words.split("; "):
                assert part in said, verdict
        assert page.title() == (
            "1 stuck, 1 down, 1 failing, 1 unreachable, 1 stalled, 1 blocked, 1 unmeasured · stallwatch exporter"
        )


@pytest.mark.parametrize("verdict", list(LOOKS))
def test_every_verdict_has_its_page(client: FlaskClient, verdict: Verdict) -> None:
    """The verdict and its sentence, the limits in force, the history; a runbook where there is one."""
    told = stories()[verdict.value]
    text = get(client, f"/backends/{told.name}")
    assert text.count(LOOKS[verdict].means) == 1
    assert all(change.sentence in text for change in told.snapshot().history)
    for part in SAID[verdict.value].split("; "):
        assert part in text or part == "server error", part
    page = client.get(f"/backends/{told.name}").get_data(as_text=True)
    assert f'href="../api/v1/backends/{told.name}"' in page
    alert = LOOKS[verdict].alert
    assert (f'href="https://run.example/b/{alert}.md"' in page) == bool(alert)
    assert "run.example" in page or not alert


def test_runbooks_that_are_named_exist() -> None:
    """Each verdict's alert has a runbook; every word that can come has its words."""
    for look in LOOKS.values():
        assert not look.alert or (RUNBOOKS / f"{look.alert}.md").exists()
    assert set(LOOKS) == set(Verdict)
    assert len(ASKS) == 5


def test_two_pages_are_compared(client: FlaskClient, fleet: Still) -> None:
    """A counter that rose has moved; other changes are said to be no progress; what stood is said to stand."""
    fleet.put(Story("pair", [seen(5, vllm(1000, run=3, kv=0.2)), seen(0, vllm(1040, run=5, kv=0.3))]).snapshot())
    fleet.put(Story("once", [seen(0, vllm(10))]).snapshot())
    text = get(client, "/backends/pair")
    for part in (
        "vllm:iteration_tokens_total_count 1,000 1,040 +40 moved",
        "requests running 3 5 +2 changed; no progress by itself",
        "KV cache use, 0 to 1 0.2 0.3 +0.1 rose",
        "requests waiting 0 0 stood",
    ):
        assert part in text
    assert "The first page of this process; there is none to compare it with yet" in get(client, "/backends/once")
    stuck = get(client, f"/backends/{stories()['stuck'].name}")
    assert "3 in a row without an answer, and 1 needed for proof" in stuck
    assert "not one byte came back after 30 s, 45 s ago" in stuck
    assert "moved" not in stuck.split("Evidence of each rank")[1].split("History of verdicts")[0]


def test_what_is_old_is_not_told_as_present(client: FlaskClient) -> None:
    """The ranks of a server that gives no page any more are those of its last page, and are said to be."""
    text = get(client, "/backends/gb10-b")
    assert "It was read 80 s ago. The latest reading failed (refused)" in text
    assert "had run for 24 h when last read" in text
    assert "Of the last good page" not in get(client, "/backends/gb10-a")


def test_history_is_kept_with_its_evidence(chromium: Browser, site: str) -> None:
    """The newest first; the pages that were compared then are one key away."""
    with visit(chromium, f"{site}/backends/gb10-a") as page:
        entries = page.locator(".history > li")
        assert [text.split()[0] for text in entries.locator("p:first-child").all_inner_texts()] == [
            "stuck",
            "stalled",
            "stalled",
            "busy",
        ]
        evidence = entries.first.locator("table")
        expect(evidence).to_be_hidden()
        entries.first.locator("summary").press("Enter")
        expect(evidence).to_be_visible()
        assert "119,500" in evidence.inner_text()


def test_limits_in_force(client: FlaskClient) -> None:
    """Every limit is shown by its own words, with the effective one beside the configured."""
    text = get(client, "/backends/gb10-f")
    for key, words in LIMITS.items():
        assert (words in text) == (key != "restart_unconfirmed_after_seconds"), key


def test_sorting_and_filtering_with_the_script(chromium: Browser, site: str) -> None:
    """The script leaves titles and form as they are: a title sorts, and the form keeps the order."""
    with visit(chromium, site) as page:
        page.get_by_role("columnheader", name="Backend").get_by_role("link").press("Enter")
        page.wait_for_url("**/?sort=name")
        page.get_by_label("State", exact=True).select_option("idle")
        page.get_by_role("button", name="Show").press("Enter")
        page.wait_for_url("**/?state=idle&group=&text=&sort=name")
        assert names(page) == ["gb10-g"]


def test_sorting_and_filtering_by_keyboard_without_script(chromium: Browser, site: str) -> None:
    """The titles sort and turn around, the form filters; both are addresses, so that they need no script."""
    with visit(chromium, site, java_script_enabled=False) as page:
        title = page.get_by_role("columnheader", name="Stood still")
        assert title.get_attribute("aria-sort") is None
        title.get_by_role("link").press("Enter")
        page.wait_for_url("**/?sort=stalled")
        assert title.get_attribute("aria-sort") == "descending"
        assert names(page)[:3] == ["gb10-a", "decode-1", "gb10-d"]
        assert names(page)[-1] == "tgi-old", "not measured comes last"
        title.get_by_role("link").press("Enter")
        page.wait_for_url("**/?sort=stalled&order=asc")
        assert title.get_attribute("aria-sort") == "ascending"
        assert (names(page)[-5], names(page)[-1]) == ("gb10-a", "tgi-old"), "also when turned around"
        page.get_by_label("Group", exact=True).focus()
        page.keyboard.type("llama")
        page.get_by_role("button", name="Show").press("Enter")
        page.wait_for_url("**group=llama-70b**")
        expect(page.get_by_text("7 of 12 backends")).to_be_visible()
        page.get_by_label("Text", exact=True).fill("GB10-D")
        page.keyboard.press("Enter")
        page.wait_for_url("**text=GB10-D**")
        assert names(page) == ["gb10-d"]
        page.get_by_role("link", name="Show all 12").click()
        assert len(names(page)) == 12
        page.get_by_role("list", name="Backends by state").get_by_role("link", name="1 paused").press("Enter")
        page.wait_for_url("**state=paused**")
        assert names(page) == ["night-1"]
        page.get_by_role("link", name="night-1").press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("night-1")
        page.get_by_role("link", name="All backends").click()
        assert len(names(page)) == 12


@pytest.mark.parametrize("column", list(COLUMNS))
def test_every_column_sorts_both_ways(client: FlaskClient, column: str) -> None:
    """Each order shows every backend, and those with values the other way around."""
    pages = [client.get(f"/?sort={column}&order={order}").get_data(as_text=True) for order in ("asc", "desc")]
    rows = [re.findall(r'href="\./backends/([^"]+)"', page) for page in pages]
    assert sorted(rows[0]) == sorted(rows[1])
    assert len(rows[0]) == 12
    assert rows[0] != rows[1]


@pytest.mark.parametrize(
    "query",
    ["sort=x&order=up", "page=99", "page=-1", "page=9999999999", "page=%C2%B2", "state=hung", "group=none", "text=%00"],
)
def test_what_an_address_cannot_mean_is_no_error(client: FlaskClient, query: str) -> None:
    """A wish that cannot be is taken as not said, or fits nothing and says so."""
    text = get(client, f"/?{query}")
    assert "12 backends, sorted by state" in text or "No backend fits" in text


def test_empty_fleet_and_unknown_pages(chromium: Browser, fleet: Still, site: str) -> None:
    """No backend, an unknown one and an unknown address are told in words, in the same clothes."""
    with visit(chromium, site) as page:
        fleet.held.clear()
        page.reload()
        assert "This exporter watches no backend." in page.locator("main").inner_text()
    client = create_app(fleet).test_client()
    for address in ("/backends/x%3Cb%3E", "/nowhere", "/a/b/c"):
        answer = client.get(address)
        text = answer.get_data(as_text=True)
        assert (answer.status_code, "<h1>Not found</h1>" in text) == (404, True)
        way = "../" * (address.count("/") - 1) or "./"
        assert f'href="{way}static/stallwatch.css?v=' in text
        assert "<b>" not in text
    assert client.get("/api/v1/nothing").get_data(as_text=True).count("stallwatch") == 0


def test_hostile_names_are_only_names(chromium: Browser, fleet: Still, site: str) -> None:
    """Names, groups, models, ranks, series, runtimes, addresses: nothing of them ever becomes a part of the page."""
    sample = dataclasses.replace(vllm(119_500, 4, 2), steps={f"steps{{a={HOSTILE}}}": 5.0})
    odd = {HOSTILE: sample, "1": vllm(7)}
    observations = [*moving(250, 215), *[seen(ago, odd, model=HOSTILE) for ago in ticks(210, 0)]]
    made = Story(HOSTILE_NAME, observations, HOSTILE, url=f"http://{HOSTILE}").snapshot()
    runtime = made.backend.runtime.model_copy(update={"name": HOSTILE})
    failures = {HOSTILE: 3}
    odd_backend = dataclasses.replace(made.backend, runtime=runtime)
    fleet.put(dataclasses.replace(made, backend=odd_backend, poll_failures=failures))
    with visit(chromium, site) as page:
        link = page.get_by_role("link", name=HOSTILE_NAME, exact=True)
        expect(link).to_have_text(HOSTILE_NAME)
        page.goto(f"{site}/?group={'%22%3E%3Cscript%3Ealert(4)%3C/script%3E'}&text=%22onfocus=alert(5)%20autofocus=%22")
        assert page.get_by_label("Text", exact=True).input_value() == '"onfocus=alert(5) autofocus="'
        page.goto(f"{site}/?sort=name")
        link.click()
        expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE_NAME)
        shown = page.locator("main").inner_text()
        assert shown.count(HOSTILE) > 5
        assert page.locator("main script, main img, main b, [onerror], [onfocus], [style]").count() == 0


def test_the_policy_stops_a_script_that_slipped_in(chromium: Browser, site: str) -> None:
    """Were a template ever to let one through, the browser would still refuse it: the policy is in force."""
    context = chromium.new_context()
    page = context.new_page()
    refused: list[str] = []
    page.on("console", lambda said: refused.append(said.text))
    page.goto(site)
    page.evaluate("document.querySelector('main').innerHTML = '<img src=x onerror=\"window.ran = 1\">'")
    page.wait_for_function("document.querySelector('main img').complete")
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in text for text in refused)
    context.close()


def test_headers_guard_the_pages(client: FlaskClient) -> None:
    """The policy and its companions stand on pages; the API and the metrics are as they were."""
    for address in ("/", "/backends/gb10-a", "/nowhere"):
        headers = client.get(address).headers
        assert headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
        assert headers["Cache-Control"] == "no-store"
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "Content-Security-Policy" not in client.get("/metrics").headers


def test_narrow_screens_do_not_scroll_sideways(chromium: Browser, site: str) -> None:
    """The page is no wider than the screen; a wide table scrolls inside its own region."""
    with visit(chromium, f"{site}/nowhere/x", missing=True) as page:
        for address in ("nowhere/x", "", "backends/gb10-a", "backends/tgi-old"):
            page.goto(f"{site}/{address}")
            for width in (320, 360, 768, 1024):
                page.set_viewport_size({"width": width, "height": 700})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, address


def test_dark_follows_the_system(chromium: Browser, site: str) -> None:
    """Ground and text change places with the system's scheme."""
    with visit(chromium, site, color_scheme="light") as page:
        ground = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(ground) == "rgb(255, 255, 255)"
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(ground) == "rgb(18, 23, 29)"


def test_the_pages_are_accessible(chromium: Browser, site: str) -> None:
    """Names, roles, headings, captions, times, and nothing told by colour alone; a table stays one on a telephone."""
    with visit(chromium, f"{site}/backends/gb10-a") as page:
        assert faults_of(page) == []
        page.goto(site)
        for width in (1280, 360):
            page.set_viewport_size({"width": width, "height": 800})
            assert faults_of(page) == []
            expect(page.get_by_role("table", name="Backends with their state")).to_be_visible()
            expect(page.get_by_role("rowheader", name="gb10-a llama-70b · vllm")).to_have_count(1)
            expect(page.get_by_role("columnheader")).to_have_count(len(COLUMNS))
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()


def test_it_keeps_itself_fresh(chromium: Browser, fleet: Still, site: str) -> None:
    """The row follows the backend, the focus stays, what is being typed stays, and the change is announced."""
    with visit(chromium, "about:blank") as page:
        page.clock.install()
        page.goto(site)
        row = page.locator("tr.row", has=page.get_by_role("link", name="gb10-d", exact=True))
        link = page.get_by_role("link", name="gb10-d", exact=True)
        link.focus()
        page.locator("input[name=text]").evaluate("(e) => { e.value = 'half a wo'; }")
        fleet.put(Story("gb10-d", moving(100, 0)).snapshot())
        page.clock.run_for(6000)
        expect(row.locator(".tag")).to_have_text("busy")
        expect(link).to_be_focused()
        assert page.get_by_label("Text", exact=True).input_value() == "half a wo"
        expect(page.get_by_role("status")).to_contain_text("2 busy")
        title = page.get_by_role("columnheader", name="State").get_by_role("link")
        title.focus()
        fleet.put(Story("gb10-d", [*moving(200, 100), *standing(95, 0)]).snapshot())
        page.clock.run_for(6000)
        expect(row.locator(".tag")).to_have_text("stalled")
        expect(title).to_be_focused()
        assert page.title().startswith("1 stuck")


def test_it_can_be_paused_and_says_how_old_it_is(chromium: Browser, fleet: Still, site: str) -> None:
    """By a button; while it is hidden nothing is fetched; open evidence stays open."""
    fetched: list[str] = []
    with visit(chromium, "about:blank") as page:
        page.clock.install()
        page.goto(f"{site}/backends/gb10-a")
        page.on("request", lambda request: fetched.append(request.url))
        clock = page.locator("[data-clock]")
        page.locator(".history summary").first.press("Enter")
        page.get_by_role("button", name="Pause").press("Enter")
        page.clock.run_for(60_000)
        expect(clock).to_have_text("Updated 60 s ago, paused")
        assert fetched == []
        page.evaluate("Object.defineProperty(document, 'hidden', { get: () => window.away !== false })")
        page.get_by_role("button", name="Go on").press("Enter")
        page.clock.run_for(60_000)
        assert fetched == []
        fleet.now += 60
        page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
        expect(page.locator(".verdict")).to_contain_text("for 85 s")
        expect(clock).to_have_text("Updated 0 s ago")
        expect(page.locator(".history details").first).to_have_attribute("open", "")
        assert fetched == [f"{site}/backends/gb10-a"]


def test_a_dead_loop_and_a_failed_reload_are_said(client: FlaskClient, fleet: Still) -> None:
    """What is old is not shown as if it were fresh."""
    fleet.now = NOW + 60
    fleet.last_reload_successful = False
    text = get(client, "/")
    assert "12 not being read" in text
    assert "Old: no poll has finished for 60 s." in text
    assert "The last reload failed" in text
    assert "Old: no poll of it has finished for 60 s." in get(client, "/backends/gb10-g")


def test_thousands_are_shown_page_by_page_and_quickly(client: FlaskClient, fleet: Still) -> None:
    """A thousand rows take less than 0.3 s of work, and every backend is on one of the pages."""
    fleet.held = {snapshot.backend.name: snapshot for snapshot in many(1000)}
    client.get("/")
    began = time.thread_time()
    text = client.get("/").get_data(as_text=True)
    assert time.thread_time() - began < 0.3
    assert f"Rows 1 to {PAGE_ROWS} of 1,000" in text
    seen_names: set[str] = set()
    address = "/"
    while address:
        text = client.get(address).get_data(as_text=True)
        seen_names |= set(re.findall(r'href="\./backends/([^"]+)"', text))
        after = re.search(r'rel="next" href="([^"]+)"', text)
        address = f"/{after[1].replace('&amp;', '&')}" if after else ""
    assert len(seen_names) == 1000
    wait = client.get("/?sort=name&page=2").get_data(as_text=True)
    assert "?sort=name&amp;page=3" in wait
