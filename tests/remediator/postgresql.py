"""A real PostgreSQL server of the tests' own: its data in a new folder, on loopback, ended with the tests.

It needs the server's programs (Debian: the package postgresql), and runs as an unprivileged user, since PostgreSQL
refuses root. No service of the machine is touched.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy.engine import URL

PASSWORD = "s3cret-of-the-test"
USERS = ("postgres", "nobody")
START_SECONDS = 30.0


def programs() -> Path | None:
    """The folder of the newest `initdb` and `postgres`."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    return next((f for f in [*found, *folders] if (f / "initdb").exists() and (f / "postgres").exists()), None)


def why_not() -> str | None:
    """Why there can be no server here; None if there can."""
    if programs() is None:
        return "its programs are not installed (Debian: apt-get install postgresql)"
    return None


class Server:
    """One server that can be killed, stopped, frozen and started again on the same port."""

    def __init__(self) -> None:
        found = programs()
        assert found is not None
        self._programs = found
        self.folder = Path(tempfile.mkdtemp(prefix="stallwatch-pg-"))
        self._as: dict[str, Any] = _unprivileged()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        password = self.folder / "password"
        password.write_text(PASSWORD + "\n", encoding="ascii")
        if self._as:
            for path in (self.folder, password):
                os.chown(path, self._as["user"], self._as["group"])
        arguments = [
            "--username=stallwatch",
            "--auth=scram-sha-256",
            f"--pwfile={password}",
            "--no-sync",
            "--no-locale",
        ]
        command = [str(found / "initdb"), "-D", str(self.folder / "data"), "--encoding=UTF8", *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, timeout=120, **self._as)
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._free: list[URL] = []
        self.start()

    def start(self) -> None:
        """Start it and wait until it lets us in."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "fsync": "off",
            "shared_buffers": "16MB",
            "max_connections": 60,
        }
        command = [str(self._programs / "postgres"), "-D", str(self.folder / "data")]
        command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log, stdout=log, cwd=self.folder, **self._as)
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                self.sql("SELECT 1")
                return
            except psycopg.OperationalError:
                said = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
                assert time.monotonic() < until, said
                assert self._process.poll() is None, said
                time.sleep(0.05)

    def kill(self) -> None:
        """As when its machine loses power: every process of it ends at once, and nothing is written any more."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Every process of it stands still; the kernel still takes connections for it."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        self._signal_all(signal.SIGCONT)

    def database(self) -> URL:
        """The address of an empty database, a new one or one that was given back: each costs eight megabytes."""
        if self._free:
            return self._free.pop()
        self._databases += 1
        name = f"journal_{self._databases}"
        self.sql(f"CREATE DATABASE {name}")
        return URL.create("postgresql", "stallwatch", host="127.0.0.1", port=self.port, database=name)

    def give_back(self, url: URL) -> None:
        """Empty a database that nobody uses any more."""
        self.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public", str(url.database))
        self._free.append(url)

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement, past the journal."""
        with psycopg.connect(
            host="127.0.0.1", port=self.port, user="stallwatch", password=PASSWORD, dbname=database, autocommit=True
        ) as connection:
            found = connection.execute(statement)
            return list(found.fetchall()) if found.description else []

    def close(self) -> None:
        """End it and remove its data."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: int) -> None:
        process = self._process
        if process is None:
            return
        children = self._children() if number == signal.SIGKILL else []
        process.send_signal(number)
        for child in children:  # they would see that their parent is gone, a moment later
            try:
                os.kill(child, number)
            except ProcessLookupError:
                continue
        process.wait(START_SECONDS)
        self._process = None

    def _signal_all(self, number: int) -> None:
        assert self._process is not None
        for pid in (self._process.pid, *self._children()):
            os.kill(pid, number)

    def _children(self) -> list[int]:
        assert self._process is not None
        path = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(pid) for pid in path.read_text(encoding="ascii").split()]


def _unprivileged() -> dict[str, Any]:
    """What makes a child of root somebody else; nothing for everybody else."""
    if os.geteuid() != 0:
        return {}
    for name in USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise AssertionError("root, and nobody else to be")
