"""Writers get their turn in the order in which they came."""

from __future__ import annotations

import threading

import pytest

from remediator.errors import JournalFailed
from remediator.turns import Turns


def test_in_the_order_in_which_they_came() -> None:
    """One that writes at once again stands behind those that wait."""
    turns, seen, here = Turns(10.0), list[str](), threading.Event()

    def waiter(name: str) -> None:
        with turns.turn():
            seen.append(name)

    threads = []
    with turns.turn():
        for name in "abc":
            threads.append(threading.Thread(target=waiter, args=(name,)))
            threads[-1].start()
            while len(turns._waiting) < len(threads):
                here.wait(0.001)
    with turns.turn():
        seen.append("again")
    for thread in threads:
        thread.join()
    assert seen == ["a", "b", "c", "again"]


def test_nobody_waits_for_ever() -> None:
    """Behind a writer that hangs it is a failure in one line, and the turn is not lost with it."""
    turns = Turns(0.05)
    with turns.turn(), pytest.raises(JournalFailed, match=r"no turn to write within 0.05 s"), turns.turn():
        pass
    with turns.turn():
        pass


def test_an_error_hands_the_turn_on() -> None:
    """A transaction that fails is over."""
    turns = Turns(0.05)
    with pytest.raises(ZeroDivisionError), turns.turn():
        raise ZeroDivisionError
    with turns.turn():
        pass
