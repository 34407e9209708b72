"""One contract for every driver, on real processes: what `remediator.drivers.Driver` promises."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import get_args

import pytest

from remediator.config import DriverSettings
from remediator.drivers import Description, DriverFailed, FailureReason
from tests.remediator.drivers.contract import STAGES, Stage, eventually

DESCRIBE_SECONDS = 10.0
SLACK_SECONDS = 2.0
"""Of a noisy machine."""


@pytest.fixture(params=sorted(STAGES))
def stage(request: pytest.FixtureRequest) -> Stage:
    """The stage of one kind after the other."""
    found: Stage = request.getfixturevalue(STAGES[request.param])
    assert found.driver.kind == request.param
    return found


def look(stage: Stage) -> Description:
    """`describe` within its ten seconds; what it says is one printable line without secrets."""
    began = time.monotonic()
    found = stage.driver.describe()
    assert time.monotonic() - began < DESCRIBE_SECONDS + SLACK_SECONDS
    check_line(stage, found.detail)
    return found


def check_line(stage: Stage, text: str) -> None:
    """What a person is shown."""
    assert text.isprintable()
    assert len(text) <= 500
    assert not any(secret in text for secret in stage.secrets)


def identity(stage: Stage) -> str:
    """The identity of a process that is there."""
    found = look(stage)
    assert found.identity, found.detail
    assert found.identity.isprintable()
    assert found.identity == found.identity.strip()
    return found.identity


def test_every_kind_of_the_configuration_has_a_stage() -> None:
    """No driver stays outside the contract."""
    union, _ = get_args(DriverSettings)
    kinds = {get_args(settings.model_fields["kind"].annotation)[0] for settings in get_args(union)}
    assert set(STAGES) == kinds


def test_what_a_driver_says_of_itself(stage: Stage) -> None:
    """A bounded call, and the programs that it needs."""
    assert 0 < stage.driver.timeout_seconds <= 60
    programs = stage.driver.programs
    assert isinstance(programs, Sequence)
    assert not isinstance(programs, str)
    assert all(isinstance(program, str) and program for program in programs)


def test_one_life_has_one_identity(stage: Stage) -> None:
    """While nothing happens the identity stays, also for another look much later than the first."""
    first = identity(stage)
    assert look(stage).running is not False
    time.sleep(1.1)  # start times are kept in seconds in many places
    assert identity(stage) == first


def test_restart_gives_a_new_identity_within_the_deadline(stage: Stage) -> None:
    """And only one: the new one stays."""
    before = identity(stage)
    began = time.monotonic()
    stage.driver.restart(stage.driver.timeout_seconds)
    assert time.monotonic() - began < stage.driver.timeout_seconds
    assert eventually(lambda: look(stage).identity not in (None, before))
    after = identity(stage)
    time.sleep(1.1)
    assert identity(stage) == after


def test_only_the_life_that_was_meant_is_restarted(stage: Stage) -> None:
    """Somebody was faster: what runs there now is left alone. The life that is there is restarted by its name."""
    before = identity(stage)
    with pytest.raises(DriverFailed) as caught:
        stage.driver.restart(stage.driver.timeout_seconds, "another-life")
    assert caught.value.reason == "replaced"
    check_line(stage, caught.value.detail)
    assert identity(stage) == before
    stage.driver.restart(stage.driver.timeout_seconds, before)
    assert eventually(lambda: look(stage).identity not in (None, before))


def test_a_restart_by_somebody_else_is_seen(stage: Stage) -> None:
    """The identity is the process's, not a count of our own restarts."""
    before = identity(stage)
    stage.kill_outside()
    assert eventually(lambda: look(stage).identity not in (None, before))


def test_what_is_gone_has_no_identity_and_a_reason(stage: Stage) -> None:
    """None, and a line that says why."""
    stage.vanish()
    found = look(stage)
    assert found.identity is None
    assert found.running is not True
    assert found.detail


def test_what_is_gone_is_not_restarted(stage: Stage) -> None:
    """A reason of the closed list and one line, within the deadline; and it is still gone afterwards."""
    stage.vanish()
    began = time.monotonic()
    with pytest.raises(DriverFailed) as caught:
        stage.driver.restart(stage.driver.timeout_seconds)
    assert time.monotonic() - began < stage.driver.timeout_seconds + SLACK_SECONDS
    assert caught.value.reason in get_args(FailureReason)
    assert caught.value.detail == str(caught.value) != ""
    check_line(stage, caught.value.detail)
    assert look(stage).identity is None
