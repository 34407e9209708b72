"""The systemd driver on a real systemd, and on fakes for what a real bus cannot be made to do."""

from __future__ import annotations

import builtins
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from remediator.drivers import DriverFailed
from remediator.drivers import systemd as systemd_driver
from remediator.drivers.systemd import SystemdDriver, SystemdSettings
from stallwatch.settings import SettingsError, load_yaml
from tests.remediator.drivers.contract import eventually
from tests.remediator.drivers.systemd_machine import IGNORES_TERM, NOBODY, SERVES, Machine

ROOT = Path(__file__).parents[3]


@pytest.fixture
def machine(systemd_machine: Machine) -> Machine:
    """The booted system."""
    return systemd_machine


def failure(driver: SystemdDriver, seconds: float = 20.0) -> tuple[str, str]:
    """Reason and detail of a restart that fails."""
    with pytest.raises(DriverFailed) as caught:
        driver.restart(seconds)
    return caught.value.reason, caught.value.detail


# Which life it is.


def test_the_identity_is_the_invocation(machine: Machine) -> None:
    """It stays while systemd itself reads its units anew or is executed anew; a restart of ours changes it once."""
    unit = machine.unit()
    driver = machine.driver(unit)
    before = driver.describe()
    assert before.identity == machine.show(unit)["InvocationID"]
    assert (before.running, before.detail) == (True, "")
    for what in ("daemon-reload", "daemon-reexec"):
        machine.systemctl(what)
        assert eventually(lambda: driver.describe() == before)
    driver.restart(20.0)
    after = driver.describe()
    assert after.running
    assert after.identity not in (None, before.identity)
    assert after.identity == machine.show(unit)["InvocationID"]


@pytest.mark.parametrize("others", ["restart", "crash"])
def test_a_life_that_others_end_is_seen(machine: Machine, others: str) -> None:
    """Somebody's systemctl restart; a crash after which `Restart=` starts it again."""
    unit = machine.unit(service="Restart=on-failure\nRestartSec=0.1")
    driver = machine.driver(unit)
    before = driver.describe().identity
    machine.systemctl(*(["restart"] if others == "restart" else ["kill", "--signal=SEGV"]), unit)
    assert eventually(lambda: driver.describe().running is True and driver.describe().identity != before)


def test_between_two_tries_there_is_no_life(machine: Machine) -> None:
    """systemd waits before it starts a crashed service again; the last life's id is still there, and is not given."""
    unit = machine.unit("exit 3", service="Restart=always\nRestartSec=60")
    driver = machine.driver(unit)
    said = f"unit {unit} does not run (activating/auto-restart, Result exit-code)"
    assert eventually(lambda: driver.describe().detail == said)
    assert machine.show(unit)["InvocationID"]
    assert (driver.describe().identity, driver.describe().running) == (None, False)
    assert failure(driver) == ("stopped", f"{said} and is not started")


def test_a_unit_that_still_starts_has_a_life_and_is_not_yet_running(machine: Machine) -> None:
    """`Type=notify`: a server that loads its weights before it says that it is ready."""
    unit = machine.unit(service="Type=notify", start=False)
    machine.systemctl("start", "--no-block", unit)
    driver = machine.driver(unit)
    assert eventually(lambda: driver.describe().identity is not None)
    found = driver.describe()
    assert (found.identity, found.running) == (machine.show(unit)["InvocationID"], False)


def test_an_instance_and_an_alias_are_found(machine: Machine) -> None:
    """Instances of a template are units like others; the job of an alias goes by the unit's own name."""
    machine.unit(name="model@.service", start=False)
    machine.systemctl("start", "model@llama.service")
    unit = machine.unit()
    machine.path("/run/systemd/system/alias.service").symlink_to(unit)
    machine.systemctl("daemon-reload")
    for name in ("model@llama.service", "alias.service"):
        driver = machine.driver(name)
        before = driver.describe().identity
        assert before
        driver.restart(20.0)
        assert driver.describe().identity not in (None, before)


def test_a_unit_of_a_user(machine: Machine) -> None:
    """Its manager is another one, on another bus; the system's manager does not know the unit."""
    machine.systemctl("start", "user@0.service")
    own = ("env", "XDG_RUNTIME_DIR=/run/user/0", "systemctl", "--user")
    machine.path("/run/systemd/user").mkdir(exist_ok=True)
    machine.path("/run/systemd/user/mine.service").write_text(f"[Service]\nExecStart=/bin/sh -c '{SERVES}'\n")
    machine.run(*own, "daemon-reload")
    machine.run(*own, "start", "mine.service")
    driver = machine.driver("mine.service", bus_address=f"unix:path={machine.path('/run/user/0/bus')}")
    assert eventually(lambda: driver.describe().running is True)  # the first to come to a user's bus starts it
    before = driver.describe()
    driver.restart(20.0)
    assert driver.describe().identity not in (None, before.identity)
    assert machine.driver("mine.service").describe().detail == "there is no unit mine.service"


# What somebody has stopped stays stopped.


@pytest.mark.parametrize("wanted", [False, True])
def test_a_stopped_unit_stays_stopped(machine: Machine, wanted: bool) -> None:
    """Also one that systemd still remembers because a target wants it: it keeps the id of its last life."""
    unit = machine.unit()
    if wanted:
        wants = machine.path("/run/systemd/system/multi-user.target.wants")
        wants.mkdir(exist_ok=True)
        (wants / unit).symlink_to(f"../{unit}")
        machine.systemctl("daemon-reload")
    machine.systemctl("stop", unit)
    driver = machine.driver(unit)
    said = f"unit {unit} does not run (inactive/dead)"
    found = driver.describe()
    assert (found.identity, found.running, found.detail) == (None, False, said)
    assert bool(machine.show(unit).get("InvocationID")) is wanted
    assert failure(driver) == ("stopped", f"{said} and is not started")
    assert machine.show(unit)["ActiveState"] == "inactive"


def test_a_stop_between_the_look_and_the_call_wins(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd itself then has nothing to restart, and says that it is done."""
    unit = machine.unit()
    checks = systemd_driver._check_runs

    def stopped_meanwhile(found: Any) -> None:
        checks(found)
        machine.systemctl("stop", unit)

    monkeypatch.setattr(systemd_driver, "_check_runs", stopped_meanwhile)
    reason, detail = failure(machine.driver(unit))
    assert (reason, "ended as done, and the unit is inactive/dead now: somebody stopped it" in detail) == (
        "stopped", True,
    )  # fmt: skip
    assert machine.show(unit)["ActiveState"] == "inactive"


def test_a_stop_that_waits_for_others_is_not_replaced(machine: Machine) -> None:
    """The unit still runs, and its stop waits for the end of another one: the restart gives way."""
    unit = machine.unit()
    last = machine.unit(unit=f"After={unit}", service="ExecStop=sleep 5")
    machine.systemctl("stop", "--no-block", last, unit)
    assert machine.show(unit)["ActiveState"] == "active"
    reason, detail = failure(machine.driver(unit))
    assert (reason, "a stop, is under way and is not replaced" in detail) == ("stopped", True)
    assert eventually(lambda: machine.show(unit)["ActiveState"] == "inactive")


def test_a_unit_that_is_being_stopped_is_not_started_again(machine: Machine) -> None:
    """Its process still runs and has an identity."""
    unit = machine.unit(IGNORES_TERM, service="TimeoutStopSec=60")
    driver = machine.driver(unit)
    before = driver.describe().identity
    machine.systemctl("stop", "--no-block", unit)
    said = f"unit {unit} is being stopped (deactivating/stop-sigterm)"
    assert eventually(lambda: driver.describe().detail == said)
    assert (driver.describe().identity, driver.describe().running) == (before, False)
    assert failure(driver) == ("stopped", f"{said} and is not started")
    machine.systemctl("kill", "--signal=KILL", unit)
    assert eventually(lambda: machine.show(unit)["ActiveState"] in ("inactive", "failed"))


# What cannot be restarted.


def test_no_such_unit(machine: Machine) -> None:
    """Unknown to systemd."""
    driver = machine.driver("vlmm.service")
    assert (driver.describe().identity, driver.describe().detail) == (None, "there is no unit vlmm.service")
    assert failure(driver) == ("not_found", "there is no unit vlmm.service")


def test_a_masked_unit(machine: Machine) -> None:
    """Masked while it runs, too: it keeps its identity, and its process."""
    unit = machine.unit()
    driver = machine.driver(unit)
    before = driver.describe().identity
    machine.path(f"/etc/systemd/system/{unit}").symlink_to("/dev/null")
    machine.systemctl("daemon-reload")
    found = driver.describe()
    assert (found.identity, found.running, found.detail) == (before, True, f"unit {unit} is masked")
    assert failure(driver) == ("not_found", f"unit {unit} is masked")
    assert machine.show(unit)["InvocationID"] == before
    machine.systemctl("stop", unit)
    assert (driver.describe().identity, driver.describe().running) == (None, False)


def test_a_unit_file_that_systemd_cannot_read(machine: Machine) -> None:
    """A setting that makes no sense."""
    unit = machine.unit(service="Type=oneshot\nRestart=always", start=False)
    reason, detail = failure(machine.driver(unit))
    assert (reason, detail.startswith(f"unit {unit} cannot be loaded (bad-setting): ")) == ("error", True)


def test_the_start_limit(machine: Machine) -> None:
    """Hit by our restart, and then found: systemd starts it no more, and neither do we."""
    unit = machine.unit(unit="StartLimitBurst=1\nStartLimitIntervalSec=1h")
    driver = machine.driver(unit)
    reason, detail = failure(driver)
    said = "started too often (failed/failed, Result start-limit-hit), it does not run now"
    assert (reason, detail) == ("start_limit", f"the restart job of {unit} ended as failed: {said}")
    said = f"unit {unit} does not run (failed/failed, Result start-limit-hit)"
    assert (driver.describe().identity, driver.describe().detail) == (None, said)
    assert failure(driver) == ("start_limit", f"{said}: started too often, systemd has given up")


CANNOT_START = [
    ("exits while it starts", "Type=forking", "failed", "failed/failed, Result exit-code"),
    ("dies at once, and nothing revives it", "Type=simple\nExecStartPost=sleep 0.5", None, "Result exit-code"),
    ("dies at once, again and again", "Restart=always\nRestartSec=60\nExecStartPost=sleep 0.5", None, "auto-restart"),
    ("is not ready in its time", "Type=notify\nTimeoutStartSec=1", "failed", "failed/failed, Result timeout"),
]


@pytest.mark.parametrize(("why", "service", "result", "state"), CANNOT_START, ids=[row[0] for row in CANNOT_START])
def test_a_unit_that_does_not_come_up_again(
    machine: Machine, why: str, service: str, result: str | None, state: str
) -> None:
    """An error with the job's result and the unit's."""
    unit = machine.unit()
    machine.unit(SERVES if "ready" in why else "exit 3", name=unit, service=service, start=False)
    reason, detail = failure(machine.driver(unit))
    assert reason == "error"
    assert detail.startswith(f"the restart job of {unit} ended as {result or ''}")
    assert state in detail


def test_a_dependency_that_fails(machine: Machine) -> None:
    """The server needs something that does not come up: the job ends as `dependency`."""
    needed = machine.unit("exit 1", service="Type=oneshot", start=False)
    unit = machine.unit()
    machine.unit(name=unit, unit=f"Requires={needed}\nAfter={needed}", start=False)
    reason, detail = failure(machine.driver(unit))
    assert (reason, detail.split(";")[0]) == ("error", f"the restart job of {unit} ended as dependency")


def test_a_dependency_that_is_not_there(machine: Machine) -> None:
    """systemd refuses at once; it is not our unit that was not found, and it still runs."""
    unit = machine.unit()
    driver = machine.driver(unit)
    before = driver.describe().identity
    machine.unit(name=unit, unit="Requires=no-such.service", start=False)
    assert failure(driver) == ("error", "systemd refuses: Unit no-such.service not found")
    assert driver.describe().identity == before


def test_somebody_stops_it_while_it_is_being_restarted(machine: Machine) -> None:
    """Our job is cancelled, and the driver does not insist."""
    unit = machine.unit()
    machine.unit(name=unit, service="ExecStartPre=sleep 20", start=False)
    said: list[tuple[str, str]] = []
    thread = threading.Thread(target=lambda: said.append(failure(machine.driver(unit))))
    thread.start()
    assert eventually(lambda: machine.show(unit)["SubState"] == "start-pre")
    machine.systemctl("stop", unit)
    thread.join(20)
    assert (said[0][0], said[0][1].split(";")[0]) == ("error", f"the restart job of {unit} ended as canceled")
    assert machine.show(unit)["ActiveState"] in ("inactive", "failed")


def test_a_condition_that_is_not_met_any_more(machine: Machine) -> None:
    """systemd calls the job done, and nothing runs."""
    unit = machine.unit()
    machine.unit(name=unit, unit="ConditionPathExists=/no/such/file", start=False)
    reason, detail = failure(machine.driver(unit))
    assert (reason, "inactive/dead" in detail, "a Condition" in detail) == ("stopped", True, True)


# How long it takes.


def test_a_service_that_ignores_sigterm_is_killed_by_systemd(machine: Machine) -> None:
    """`TimeoutStopSec` is the unit's patience; a restart within the deadline is a restart."""
    unit = machine.unit(IGNORES_TERM, service="TimeoutStopSec=1")
    driver = machine.driver(unit)
    before = driver.describe().identity
    began = time.monotonic()
    driver.restart(20.0)
    assert 0.9 <= time.monotonic() - began < 15.0
    assert driver.describe().identity not in (None, before)


def test_a_service_that_does_not_stop_within_the_deadline(machine: Machine) -> None:
    """Told apart from one that is slow to start; systemd goes on with its job."""
    unit = machine.unit(IGNORES_TERM, service="TimeoutStopSec=4")
    driver = machine.driver(unit)
    before = driver.describe().identity
    said = f"unit {unit} does not stop (deactivating/stop-sigterm); systemd goes on with it"
    assert failure(driver, 1.5) == ("will_not_stop", said)
    assert eventually(lambda: driver.describe().identity not in (None, before))


def test_a_job_that_has_a_limit_of_its_own(machine: Machine) -> None:
    """`JobRunningTimeoutSec` ends the job, while the old process still does not stop."""
    unit = machine.unit(IGNORES_TERM, unit="JobRunningTimeoutSec=1", service="TimeoutStopSec=60")
    said = f"unit {unit} does not stop (deactivating/stop-sigterm); its job ran into a limit of the unit"
    assert failure(machine.driver(unit)) == ("will_not_stop", said)
    machine.systemctl("kill", "--signal=KILL", unit)


def test_a_service_that_is_slow_to_start(machine: Machine) -> None:
    """The deadline comes first; the restart goes on and is seen by its new identity."""
    unit = machine.unit()
    driver = machine.driver(unit)
    before = driver.describe().identity
    machine.unit(name=unit, service="ExecStartPre=sleep 3", start=False)
    began = time.monotonic()
    said = f"the restart of {unit} was not over within 1.5 s (activating/start-pre); systemd goes on with it"
    assert failure(driver, 1.5) == ("deadline", said)
    assert time.monotonic() - began < 3.0
    assert eventually(lambda: driver.describe().running is True)
    assert driver.describe().identity != before


# Who may do it.

AS_USER = """
import os, sys
from remediator.drivers import DriverFailed
from remediator.drivers.systemd import SystemdSettings
driver = SystemdSettings(kind="systemd", unit=sys.argv[1], bus_address="unix:path=" + sys.argv[2]).make()
os.setgroups([]); os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[3]))
print(driver.describe().running)
try:
    driver.restart(20.0)
    print("restarted")
except DriverFailed as failed:
    print(failed.reason, "|", failed.detail)
"""


def as_user(machine: Machine, unit: str, uid: int = NOBODY, bus: Path | None = None) -> list[str]:
    """Describe and restart as an unprivileged user among the machine's processes, with this system's files."""
    inside = ["nsenter", f"--target={machine.leader}", "--pid", "--", sys.executable, "-c", AS_USER]
    arguments = [unit, str(bus or machine.bus), str(uid)]
    done = subprocess.run(
        [*inside, *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    return done.stdout.splitlines()


RULE = """
polkit.addRule(function(action, subject) {
    if (action.id == "org.freedesktop.systemd1.manage-units" &&
        subject.user == "stallwatch" &&
        action.lookup("verb") == "try-restart" &&
        ["UNIT"].indexOf(action.lookup("unit")) >= 0) {
        return polkit.Result.YES;
    }
});
"""


def test_without_polkit_only_root_may(machine: Machine) -> None:
    """A small system has none; every user may look."""
    unit = machine.unit()
    before = machine.driver(unit).describe().identity
    activation = machine.path("/usr/share/dbus-1/system-services/org.freedesktop.PolicyKit1.service")
    text = activation.read_text(encoding="utf-8")
    activation.unlink()
    machine.systemctl("stop", "polkit.service")
    machine.systemctl("reload", "dbus.service")
    try:
        running, said = as_user(machine, unit)
    finally:
        activation.write_text(text, encoding="utf-8")
        machine.systemctl("reload", "dbus.service")
    assert running == "True"
    assert said.startswith("no_permission | ")
    assert said.endswith("; the remediator's user may not do this; a polkit rule can allow it")
    assert machine.driver(unit).describe().identity == before


def test_the_rule_of_the_manual_allows_one_user_one_verb_of_the_named_units(machine: Machine) -> None:
    """The very rule in docs/drivers/systemd.md, with the unit's name put in. Nobody else, and nothing else."""
    manual = (ROOT / "docs/drivers/systemd.md").read_text(encoding="utf-8")
    assert RULE.replace("UNIT", "vllm.service") in manual
    unit, other = machine.unit(), machine.unit()
    machine.run("useradd", "--system", "--uid=990", "stallwatch")
    rule = machine.path("/etc/polkit-1/rules.d/50-stallwatch.rules")
    rule.write_text(RULE.replace("UNIT", unit), encoding="ascii")
    machine.systemctl("restart", "polkit.service")
    try:
        identity = machine.driver(unit).describe().identity
        refused = "no_permission | systemd refuses: Interactive authentication required; the remediator's user may "
        assert as_user(machine, unit)[1].startswith(refused)
        assert as_user(machine, other, 990)[1].startswith(refused)
        assert machine.driver(unit).describe().identity == identity
        assert as_user(machine, unit, 990) == ["True", "restarted"]
        assert machine.driver(unit).describe().identity not in (None, identity)
        machine.run("runuser", "-u", "stallwatch", "--", "systemctl", "--no-ask-password", "stop", unit)
        assert machine.show(unit)["ActiveState"] == "active"
    finally:
        rule.unlink()
        machine.systemctl("restart", "polkit.service")


def test_a_socket_that_this_user_may_not_open(machine: Machine) -> None:
    """The bus of another user, behind a folder of his own."""
    hidden = machine.folder / "hidden"
    hidden.mkdir(mode=0o700)
    (hidden / "bus").symlink_to(machine.bus)
    running, said = as_user(machine, "vllm.service", bus=hidden / "bus")
    assert (running, said) == ("None", f"no_permission | this user may not open the bus at {hidden}/bus")


# What state the bus is in.


def dbus_pid(machine: Machine) -> int:
    """The bus's process, seen from here."""
    inside = machine.show("dbus.service")["MainPID"]
    for path in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            lines = dict(line.split(":", 1) for line in path.read_text(encoding="utf-8").splitlines())
            ids = lines["NSpid"].split()
            if ids[1:] == [inside] and lines["Name"].strip() == "dbus-daemon":
                return int(ids[0])
    raise AssertionError("the bus has no process")


def test_the_bus_dies_during_the_restart(machine: Machine) -> None:
    """Whether the restart goes on nobody is told; it does, and the new life is seen once the bus is back."""
    unit = machine.unit()
    driver = machine.driver(unit)
    before = driver.describe().identity
    machine.unit(name=unit, service="ExecStartPre=sleep 8", start=False)
    said: list[tuple[str, str]] = []
    thread = threading.Thread(target=lambda: said.append(failure(driver)))
    thread.start()
    assert eventually(lambda: machine.show(unit)["SubState"] == "start-pre")
    os.kill(dbus_pid(machine), signal.SIGKILL)
    thread.join(20)
    assert said == [
        ("unavailable", f"the bus at {machine.bus} closed the connection; a restart may have been asked for")
    ]
    assert eventually(lambda: driver.describe().running is True)
    assert driver.describe().identity not in (None, before)


def test_a_bus_that_stands_still(machine: Machine) -> None:
    """It accepts and does not answer; the deadline holds, and nothing was asked for."""
    unit = machine.unit()
    driver = machine.driver(unit)
    before = driver.describe()
    bus = dbus_pid(machine)
    os.kill(bus, signal.SIGSTOP)
    try:
        began = time.monotonic()
        said = failure(driver, 1.0)
        assert time.monotonic() - began < 2.0
    finally:
        os.kill(bus, signal.SIGCONT)
    assert said == ("deadline", f"systemd did not answer over {machine.bus} within 1 s")
    assert driver.describe() == before


def driver_at(path: Path) -> SystemdDriver:
    """A driver on a bus that a test has made up."""
    return SystemdSettings(kind="systemd", unit="vllm.service", bus_address=f"unix:path={path}").make()


def test_no_bus_at_all(tmp_path: Path) -> None:
    """No socket, and a socket behind which nobody listens."""
    for left in (False, True):
        path = tmp_path / f"bus-{left}"
        if left:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
        why = "Connection refused" if left else "No such file or directory"
        said = f"there is no bus at {path}: {why}"
        found = driver_at(path).describe()
        assert (found.identity, found.running, found.detail) == (None, None, said)
        assert failure(driver_at(path)) == ("unavailable", said)


@contextmanager
def fake_bus(path: Path, talk: Callable[[socket.socket], None]) -> Iterator[SystemdDriver]:
    """Accepts, and says what no real bus would."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        talk(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield driver_at(path)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def read_until(connection: socket.socket, end: bytes) -> None:
    """Read to the end of what is awaited."""
    read = b""
    while not read.endswith(end):
        chunk = connection.recv(1)
        if not chunk:
            raise ConnectionResetError
        read += chunk


def let_in(connection: socket.socket) -> None:
    """Authentication as it should be."""
    read_until(connection, b"\r\n")
    connection.sendall(b"OK 0123456789abcdef0123456789abcdef\r\n")
    read_until(connection, b"BEGIN\r\n")


def announce(connection: socket.socket, size: int) -> None:
    """The beginning of an answer with a body of that size."""
    connection.sendall(b"l\2\0\1" + size.to_bytes(4, "little") + b"\1\0\0\0" + (16).to_bytes(4, "little"))


def silent(connection: socket.socket) -> None:
    """Reads, and never answers."""
    while connection.recv(4096):
        pass


def silent_inside(connection: socket.socket) -> None:
    """Lets us in, and then never answers."""
    let_in(connection)
    silent(connection)


def dribbling(connection: socket.socket) -> None:
    """Lets us in, and then sends a byte of a long message from time to time."""
    let_in(connection)
    announce(connection, 1000)
    while True:
        connection.sendall(b"\0")
        time.sleep(0.05)


def flooding(connection: socket.socket) -> None:
    """Lets us in, and sends a message without end."""
    let_in(connection)
    announce(connection, 120_000_000)
    while True:
        connection.sendall(b"\0" * 65536)


def refusing(connection: socket.socket) -> None:
    """Does not let this user in."""
    read_until(connection, b"\r\n")
    connection.sendall(b"REJECTED EXTERNAL\r\n")
    silent(connection)


def no_bus(connection: socket.socket) -> None:
    """Another program's socket."""
    read_until(connection, b"\r\n")
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    silent(connection)


def babbling(connection: socket.socket) -> None:
    """Lets us in, and then speaks no D-Bus."""
    let_in(connection)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
    silent(connection)


def hanging_up(connection: socket.socket) -> None:
    """Lets us in, and closes."""
    let_in(connection)
    connection.recv(4096)


@pytest.mark.parametrize(
    ("talk", "reason", "detail"),
    [
        (silent, "deadline", "systemd did not answer over {path} within 0.7 s"),
        (silent_inside, "deadline", "systemd did not answer over {path} within 0.7 s"),
        (dribbling, "deadline", "systemd did not answer over {path} within 0.7 s"),
        (flooding, "unavailable", "the bus at {path} sent more than an answer can hold"),
        (refusing, "no_permission", "the bus at {path} does not let this user in"),
        (no_bus, "error", "the answer over the bus has no form that is known"),
        (babbling, "error", "the answer over the bus has no form that is known"),
        (hanging_up, "unavailable", "the bus at {path} "),
    ],
)
def test_a_bus_gone_mad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, talk: Callable[[socket.socket], None], reason: str, detail: str
) -> None:
    """The deadline is that of everything together, and `describe` never raises."""
    monkeypatch.setattr(systemd_driver, "DESCRIBE_SECONDS", 0.7)
    with fake_bus(tmp_path / "bus", talk) as driver:
        began = time.monotonic()
        said = failure(driver, 0.7)
        found = driver.describe()
        assert time.monotonic() - began < 3.0
    assert said[0] == reason
    for text in (said[1], found.detail):
        assert text.startswith(detail.format(path=tmp_path / "bus"))
    assert (found.identity, found.running) == (None, None)


# The settings.


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{kind: systemd}", "unit: is missing"),
        ("{kind: systemd, unit: vllm}", "unit: must be the full name of a service unit"),
        ("{kind: systemd, unit: vllm.socket}", "unit: must be the full name of a service unit"),
        ("{kind: systemd, unit: vllm@.service}", "unit: must be the full name of a service unit"),
        ("{kind: systemd, unit: '*.service'}", "unit: must be the full name of a service unit"),
        ("{kind: systemd, unit: ../vllm.service}", "unit: must be the full name of a service unit"),
        ('{kind: systemd, unit: "vllm.service\\n"}', "unit: must be the full name of a service unit"),
        ("{kind: systemd, unit: vllm.service, bus_address: /run/bus}", "bus_address: must be unix:path="),
        ("{kind: systemd, unit: vllm.service, bus_address: 'tcp:host=a,port=1'}", "bus_address: must be unix:path="),
        ("{kind: systemd, unit: vllm.service, bus_address: 'unix:path=/a;unix:path=/b'}", "bus_address: must be"),
        ("{kind: systemd, unit: vllm.service, timeout_seconds: 0}", "timeout_seconds: must be above 0"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(tmp_path: Path, line: str, problem: str) -> None:
    """One line that names the key."""
    path = tmp_path / "driver.yml"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        load_yaml(path, SystemdSettings)
    assert problem in str(caught.value)


@pytest.mark.parametrize("unit", ["vllm.service", "vllm@llama-70b.service", r"srv-a\x2db.service", "a:b_c.d.service"])
def test_names_of_units(unit: str) -> None:
    """Templates' instances and escaped names are names."""
    driver = SystemdSettings(kind="systemd", unit=unit).make()
    assert (driver.kind, driver.unit, driver.bus) == ("systemd", unit, "/run/dbus/system_bus_socket")
    assert (driver.timeout_seconds, driver.programs) == (120.0, ())


def test_the_environment_names_no_bus(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the configuration does."""
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/no/such/bus")
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/no/such/bus")
    assert machine.driver(machine.unit()).describe().running is True


def test_jeepney_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it one line says how to get it."""
    real = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "jeepney":
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.delitem(sys.modules, "remediator.drivers.systemd_bus", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SettingsError) as caught:
        SystemdSettings(kind="systemd", unit="vllm.service").make()
    assert str(caught.value) == "the systemd driver needs jeepney: pip install 'stallwatch[systemd]'"
