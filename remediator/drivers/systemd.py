"""Restarts a unit of systemd by one job, and waits for its end. Nothing that somebody has stopped is ever started.

`TryRestartUnit` restarts only what runs, and with the mode `fail` it gives way to a stop that is already under way.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator

from remediator.drivers import Description, DriverFailed, check_same
from remediator.drivers.command import first_line
from stallwatch.settings import Seconds, SettingsError, Strict

if TYPE_CHECKING:
    from remediator.drivers.systemd_bus import Systemd

DESCRIBE_SECONDS = 9.0
SYSTEM_BUS = "unix:path=/run/dbus/system_bus_socket"
LAST_LOOK_SECONDS = 2.0
"""At most this much of the deadline, or a tenth, is kept to look why a job has not ended."""
UP = ("active", "reloading", "refreshing")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\-]+(@[A-Za-z0-9:_.\\-]+)?\.service")


class TimedOut(Exception):
    """The deadline came before the answer."""


def _unit(text: str) -> str:
    if not _UNIT.fullmatch(text) or len(text) > 255:
        raise ValueError("must be the full name of a service unit, such as vllm.service or vllm@llama.service")
    return text


def _address(text: str) -> str:
    if not re.fullmatch(r"unix:path=/[\w/.@+-]{1,100}", text, re.ASCII):
        raise ValueError("must be unix:path= and the absolute path of the bus's socket")
    return text


class SystemdSettings(Strict):
    """Restart a service of systemd; `bus_address` may name the bus of a user."""

    kind: Literal["systemd"]
    unit: Annotated[str, AfterValidator(_unit)]
    bus_address: Annotated[str, AfterValidator(_address)] = SYSTEM_BUS
    timeout_seconds: Seconds = 120.0

    def make(self) -> SystemdDriver:
        """The driver that these settings describe. Raises `SettingsError` without jeepney."""
        try:
            from remediator.drivers.systemd_bus import connect  # noqa: PLC0415  # jeepney is optional
        except ImportError:
            raise SettingsError("the systemd driver needs jeepney: pip install 'stallwatch[systemd]'") from None
        path = self.bus_address.removeprefix("unix:path=")
        return SystemdDriver(connect, path, self.unit, self.timeout_seconds)


@dataclass(frozen=True, slots=True)
class Unit:
    """What systemd says of a unit, in its own words. `life` is its InvocationID in hexadecimal, perhaps an old one."""

    name: str
    load: str
    load_error: str
    active: str
    sub: str
    life: str
    result: str

    @property
    def state(self) -> str:
        """As systemctl prints it."""
        return f"{self.active}/{self.sub}" + ("" if self.result == "success" else f", Result {self.result}")

    @property
    def identity(self) -> str | None:
        """Names one life of the service; None while no process of it can run. A stopped unit may keep its last one."""
        lives = self.active in (*UP, "activating", "deactivating") and not self.sub.startswith("auto-restart")
        return self.life if lives and self.life else None

    @property
    def unusable(self) -> DriverFailed | None:
        """Why it cannot be restarted at all, whether it runs or not."""
        if self.load in ("not-found", "masked"):
            what = f"there is no unit {self.name}" if self.load == "not-found" else f"unit {self.name} is masked"
            return DriverFailed("not_found", what)
        if self.load != "loaded":
            return DriverFailed("error", f"unit {self.name} cannot be loaded ({self.load}): {self.load_error}")
        return None

    @property
    def not_running(self) -> str:
        """Why there is nothing to restart; empty when there is."""
        if self.active == "deactivating":
            return f"unit {self.name} is being stopped ({self.state})"
        return "" if self.identity else f"unit {self.name} does not run ({self.state})"

    @property
    def detail(self) -> str:
        """Why it is not well; empty when it is."""
        unusable = self.unusable
        return unusable.detail if unusable else self.not_running


@dataclass(frozen=True, slots=True)
class SystemdDriver:
    """`connect` gives a conversation that ends at a monotonic time, in `TimedOut` if it must."""

    connect: Callable[[str, float], AbstractContextManager[Systemd]]
    bus: str
    unit: str
    timeout_seconds: float
    kind: str = "systemd"
    programs: Sequence[str] = ()

    def describe(self) -> Description:
        """The InvocationID, and whether the unit is active."""
        try:
            with self.connect(self.bus, time.monotonic() + DESCRIBE_SECONDS) as systemd:
                found = self._look(systemd)
        except DriverFailed as failure:
            return Description(None, None, failure.detail)
        except TimedOut:
            return Description(None, None, f"systemd did not answer over {self.bus} within {DESCRIBE_SECONDS:g} s")
        except Exception as error:  # an answer in no form that D-Bus or systemd has
            return Description(None, None, _odd(error))
        return Description(found.identity, found.active in UP, found.detail)

    def restart(self, deadline_seconds: float, identity: str | None = None) -> None:
        """One restart job for the unit, if it runs, to its end. Raises `DriverFailed`."""
        until = time.monotonic() + deadline_seconds
        asked = ""
        try:
            with self.connect(self.bus, until) as systemd:
                before = self._look(systemd)
                _check_runs(before)
                check_same(identity, before.identity)
                systemd.subscribe()  # before the call: a job may end before its own reply has come
                asked = "; a restart may have been asked for"
                (job,) = systemd.manager("TryRestartUnit", "ss", (self.unit, "fail"))
                wait_until = until - min(LAST_LOOK_SECONDS, deadline_seconds / 10)
                try:
                    result = systemd.job_result(str(job), wait_until)
                except TimedOut:
                    result = ""
                after = self._look(systemd)
        except TimedOut:
            late = f"systemd did not answer over {self.bus} within {deadline_seconds:g} s{asked}"
            raise DriverFailed("deadline", late) from None
        except DriverFailed as failure:
            if failure.reason != "unavailable":
                raise
            raise DriverFailed("unavailable", f"{failure.detail}{asked}") from None
        except Exception as error:
            raise DriverFailed("error", f"{_odd(error)}{asked}") from error
        _judge(before, after, result, deadline_seconds)

    def _look(self, systemd: Systemd) -> Unit:
        (path,) = systemd.manager("LoadUnit", "s", (self.unit,))
        found = systemd.properties(path, "Unit")
        return Unit(
            name=self.unit,
            load=_word(found["LoadState"]),
            load_error=_word(found["LoadError"][1]),
            active=_word(found["ActiveState"]),
            sub=_word(found["SubState"]),
            life=bytes(found["InvocationID"]).hex(),
            result=_word(systemd.property(path, "Service", "Result")),  # alone: the others hold the environment
        )


def _check_runs(unit: Unit) -> None:
    if unit.unusable is not None:
        raise unit.unusable
    if unit.active == "failed" and unit.result == "start-limit-hit":
        raise DriverFailed("start_limit", f"{unit.not_running}: started too often, systemd has given up")
    if unit.not_running:
        raise DriverFailed("stopped", f"{unit.not_running} and is not started")


def _judge(before: Unit, after: Unit, result: str, deadline_seconds: float) -> None:
    """Compare the unit before and after its job. `result` is empty when the job has not ended."""
    name, ended = after.name, f"the restart job of {after.name} ended as {result}"
    if after.result == "start-limit-hit":
        raise DriverFailed("start_limit", f"{ended}: started too often ({after.state}), it does not run now")
    if result in ("", "timeout") and after.active == "deactivating":
        raise DriverFailed("will_not_stop", f"unit {name} does not stop ({after.state})" + _goes_on(result))
    if not result:
        late = f"the restart of {name} was not over within {deadline_seconds:g} s ({after.state})"
        raise DriverFailed("deadline", late + _goes_on(result))
    if result != "done":
        raise DriverFailed("error", f"{ended}; the unit is {after.state} now")
    if after.active == "inactive":
        why = "somebody stopped it, a Condition of the unit keeps it down, or it ended by itself"
        raise DriverFailed("stopped", f"{ended}, and the unit is {after.state} now: {why}")
    if after.not_running:
        raise DriverFailed("error", f"{ended}, but the unit is {after.state} now")
    if after.life == before.life:
        raise DriverFailed("error", f"{ended}, but the unit was not restarted ({after.state})")


def _goes_on(result: str) -> str:
    return "; its job ran into a limit of the unit" if result else "; systemd goes on with it"


def _word(value: object) -> str:
    return first_line(str(value).encode())


def _odd(error: Exception) -> str:
    return f"the answer over the bus has no form that is known ({type(error).__name__})"
