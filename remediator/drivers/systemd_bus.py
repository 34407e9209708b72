"""One short conversation with systemd over D-Bus, within one total deadline. Needs jeepney, which is optional.

Only jeepney's messages, authentication and parser are used: its own connection greets the bus without any limit, and
a bus that accepts and never answers would hold us for ever.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jeepney import (  # type: ignore[import-untyped]
    DBusAddress,
    HeaderFields,
    Message,
    MessageFlag,
    MessageType,
    Parser,
    new_method_call,
)
from jeepney.auth import BEGIN, AuthenticationError, Authenticator  # type: ignore[import-untyped]

from remediator.drivers import DriverFailed, FailureReason
from remediator.drivers.command import first_line
from remediator.drivers.systemd import TimedOut

MAX_BYTES = 8 * 1024 * 1024
"""Of everything that is read in one conversation; an answer has some 10 kB."""
SYSTEMD = "org.freedesktop.systemd1"
MANAGER = "/org/freedesktop/systemd1"
DBUS = "org.freedesktop.DBus"
_ERROR = f"{DBUS}.Error."
_REASONS: dict[str, FailureReason] = {
    f"{SYSTEMD}.TransactionIsDestructive": "stopped",
    f"{_ERROR}AccessDenied": "no_permission",
    f"{_ERROR}AuthFailed": "no_permission",
    f"{_ERROR}InteractiveAuthorizationRequired": "no_permission",
    f"{_ERROR}ServiceUnknown": "unavailable",
    f"{_ERROR}NameHasNoOwner": "unavailable",
    f"{_ERROR}NoReply": "unavailable",
    f"{_ERROR}Disconnected": "unavailable",
    f"{_ERROR}LimitsExceeded": "unavailable",
}
"""`NoSuchUnit` and `UnitMasked` are left out: they may speak of another unit, one that ours requires."""
_HINTS = {
    "stopped": "another job of the unit, such as a stop, is under way and is not replaced",
    "no_permission": "the remediator's user may not do this; a polkit rule can allow it",
}


class Systemd:
    """The service manager at the other end of the bus. Every method raises `TimedOut` or `DriverFailed`."""

    def __init__(self, connection: socket.socket, path: str, until: float) -> None:
        """`until` is the end of all waiting, by the monotonic clock."""
        self._socket = connection
        self._path = path
        self._until = until
        self._parser = Parser()
        self._serial = 0
        self._read_bytes = 0
        self._signals: list[Message] = []

    def greet(self) -> None:
        """Authenticate as the user that we are, and say hello."""
        self._send(b"\0")
        authenticator = Authenticator(inc_null_byte=False)
        try:
            for data in authenticator:
                self._send(data)
                authenticator.feed(self._receive(self._until))
        except AuthenticationError as error:
            if not bytes(error.data).startswith(b"REJECTED"):
                raise  # no words of a bus
            raise DriverFailed("no_permission", f"the bus at {self._path} does not let this user in") from None
        self._send(BEGIN)
        self._call(DBusAddress("/org/freedesktop/DBus", DBUS, DBUS), "Hello")

    def subscribe(self) -> None:
        """From here on the ends of jobs are told to us."""
        rule = f"type='signal',sender='{SYSTEMD}',path='{MANAGER}',interface='{SYSTEMD}.Manager',member='JobRemoved'"
        self._call(DBusAddress("/org/freedesktop/DBus", DBUS, DBUS), "AddMatch", "s", (rule,))
        self.manager("Subscribe")

    def manager(self, method: str, signature: str | None = None, body: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        """Call the manager."""
        return self._call(DBusAddress(MANAGER, SYSTEMD, f"{SYSTEMD}.Manager"), method, signature, body)

    def properties(self, path: str, interface: str) -> dict[str, Any]:
        """All properties of an interface of a unit, by name."""
        address = DBusAddress(path, SYSTEMD, f"{DBUS}.Properties")
        (found,) = self._call(address, "GetAll", "s", (f"{SYSTEMD}.{interface}",))
        return {name: value for name, (_, value) in found.items()}

    def property(self, path: str, interface: str, name: str) -> object:
        """One property of a unit."""
        address = DBusAddress(path, SYSTEMD, f"{DBUS}.Properties")
        ((_, value),) = self._call(address, "Get", "ss", (f"{SYSTEMD}.{interface}", name))
        return value

    def job_result(self, job: str, until: float) -> str:
        """Wait for the end of a job, given by its object path, until then at most; its result in systemd's word."""
        while True:
            for message in self._signals:
                fields = message.header.fields
                if fields.get(HeaderFields.member) == "JobRemoved" and message.body[1] == job:
                    return first_line(str(message.body[3]).encode())
            self._signals.clear()
            self._next(min(until, self._until))

    def _call(
        self, address: DBusAddress, method: str, signature: str | None = None, body: tuple[Any, ...] = ()
    ) -> tuple[Any, ...]:
        message = new_method_call(address, method, signature, body)
        message.header.flags = MessageFlag.no_auto_start  # what is not there is not to be started by our asking
        self._serial += 1
        self._send(message.serialise(serial=self._serial))
        while True:
            answer = self._next(self._until)
            if answer is not None and answer.header.fields.get(HeaderFields.reply_serial) == self._serial:
                break
        if answer.header.message_type is MessageType.error:
            raise _refused(answer)
        return tuple(answer.body)

    def _next(self, until: float) -> Message | None:
        """One message: a signal is kept and None given; anything else is given."""
        while (message := self._parser.get_next_message()) is None:
            self._parser.add_data(self._receive(until))
        if message.header.message_type is not MessageType.signal:
            return message
        self._signals.append(message)
        return None

    def _send(self, data: bytes) -> None:
        with self._bounded(self._until):
            self._socket.sendall(data)

    def _receive(self, until: float) -> bytes:
        with self._bounded(until):
            data = self._socket.recv(65536)
        self._read_bytes += len(data)
        if not data or self._read_bytes > MAX_BYTES:
            why = "sent more than an answer can hold" if data else "closed the connection"
            raise DriverFailed("unavailable", f"the bus at {self._path} {why}")
        return data

    @contextmanager
    def _bounded(self, until: float) -> Iterator[None]:
        remaining = until - time.monotonic()
        if remaining <= 0:
            raise TimedOut
        self._socket.settimeout(remaining)
        try:
            yield
        except TimeoutError:
            raise TimedOut from None
        except OSError as error:
            raise DriverFailed("unavailable", f"the bus at {self._path} is gone: {error.strerror}") from None


@contextmanager
def connect(path: str, until: float) -> Iterator[Systemd]:
    """A conversation over the bus at a socket's path. Raises `TimedOut` or `DriverFailed`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(max(0.001, until - time.monotonic()))
        try:
            connection.connect(path)
        except TimeoutError:
            raise TimedOut from None
        except PermissionError:
            raise DriverFailed("no_permission", f"this user may not open the bus at {path}") from None
        except OSError as error:
            raise DriverFailed("unavailable", f"there is no bus at {path}: {error.strerror or error}") from None
        systemd = Systemd(connection, path, until)
        systemd.greet()
        yield systemd


def _refused(answer: Message) -> DriverFailed:
    """An error in one line: what was said, and what it means where that is not plain."""
    name = first_line(str(answer.header.fields.get(HeaderFields.error_name, "")).encode())
    reason = _REASONS.get(name, "unavailable" if name.startswith(f"{_ERROR}Spawn.") else "error")
    words = first_line(str(answer.body[0]).encode()) if answer.body else ""
    said = words.rstrip(".") or name
    hint = _HINTS.get(reason)
    return DriverFailed(reason, f"systemd refuses: {said}" + (f"; {hint}" if hint else ""))
