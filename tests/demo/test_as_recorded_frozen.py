"""The simulated server held against recordings of real ones, by the same claims: frozen engines."""

from demo.traffic import Traffic
from tests.demo.conftest import Serve
from tests.demo.pages import Page, Poll, busy_page, has, moved, recorded, running, six, steps, value, waiting, work


def frozen_while_busy(polls: list[Poll]) -> None:
    """Health and metrics answer, requests run and wait, and no vllm: series moves."""
    assert len(polls) >= 10
    assert {poll.health for poll in polls} == {200}
    assert running(polls[0].page) > 0
    for before, after in steps(polls):
        assert moved(before, after) == set()


def test_frozen_while_busy_recorded() -> None:
    """A real engine process stopped with 4 running and 2 waiting."""
    frozen_while_busy(recorded("05-freeze-while-busy", "frozen"))


def test_frozen_while_busy_simulated(serve: Serve) -> None:
    """The simulated one, with clients that arrive, and give up: neither shows in any vllm: series."""
    live = serve()
    with six(live):
        busy_page(live)
        live.post("/demo/freeze?rank=0")
        with Traffic(live.url, clients=3):
            polls = live.polls(6)
        frozen_while_busy(polls + live.polls(6))
        assert live.ask(timeout=0.3) is None
        live.post("/demo/thaw")
        live.until(lambda page: work(page) > work(polls[-1].page))


def frozen_while_idle(polls: list[Poll]) -> None:
    """A page like that of an idle server: nothing in flight, nothing moves, whatever hangs."""
    assert len(polls) >= 10
    assert {poll.health for poll in polls} == {200}
    assert {(running(poll.page), waiting(poll.page)) for poll in polls} == {(0, 0)}
    for before, after in steps(polls):
        assert moved(before, after) == set()


def test_frozen_while_idle_recorded() -> None:
    """A real engine process stopped while idle; three requests hang."""
    frozen_while_idle(recorded("06-freeze-while-idle", "frozen-reqs"))


def test_frozen_while_idle_simulated(serve: Serve) -> None:
    """The simulated one; let go, it does the three requests."""
    live = serve()
    live.post("/demo/freeze")
    with Traffic(live.url, clients=3, max_tokens=10_000):
        frozen_while_idle(live.polls(12, every=0.03))
        live.post("/demo/thaw")
        live.until(lambda page: running(page) == 3)


def only_http_moves(before: Page, after: Page, clients: int) -> None:
    """Clients that give up on an engine that stands still count as 2xx of the HTTP layer, and nowhere else."""
    assert moved(before, after) == set()
    totals = [
        value(page, "http_requests_total", handler="/v1/completions", method="POST", status="2xx")
        for page in (before, after)
    ]
    assert totals[1] - totals[0] == clients


def test_giving_up_recorded() -> None:
    """Two clients of a real server that sleeps."""
    polls = recorded("12-sleep-mode", "sleeping-reqs")
    only_http_moves(polls[0].page, polls[-1].page, 2)


def test_giving_up_simulated(serve: Serve) -> None:
    """Two clients of a frozen simulated one."""
    live = serve()
    assert live.ask() == 200
    name = "http_requests_total"
    before = live.until(lambda page: has(page, name))
    live.post("/demo/freeze")
    assert live.ask(timeout=0.1) is None
    assert live.ask(timeout=0.1) is None
    only_http_moves(before, live.until(lambda page: value(page, name) == value(before, name) + 2), 2)


def one_of_two_frozen(polls: list[Poll]) -> None:
    """Engine 0 stands still with work, engine 1 works on, and so does the sum of both."""
    assert len(polls) >= 8
    for before, after in steps(polls):
        assert moved(before, after, engine="0") == set()
        assert "vllm:generation_tokens_total" in moved(before, after, engine="1")
        assert work(after) > work(before)
        assert running(after, engine="0") > 0


def test_one_of_two_frozen_recorded() -> None:
    """A real server with two engines, one of them stopped."""
    one_of_two_frozen(recorded("10-dp2-one-frozen", "one-frozen"))


def test_one_of_two_frozen_simulated(serve: Serve) -> None:
    """The simulated one; a request by name finds which."""
    live = serve(ranks=2, api_servers=2)
    with Traffic(live.url, clients=8, max_tokens=10_000):
        live.until(lambda page: running(page, engine="0") == running(page, engine="1") == 4)
        live.post("/demo/freeze?rank=0")
        one_of_two_frozen(live.polls(10, every=0.15))
    assert live.ask(timeout=0.3, X_data_parallel_rank="0") is None
    assert live.ask(X_data_parallel_rank="1") == 200
