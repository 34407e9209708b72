"""Lists of targets from files and from servers. What is broken keeps its last good list, is said once and counted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any, Protocol

from exporter.source_settings import FileSettings, HttpSettings
from exporter.targets import MAX_BYTES, TargetsError, parse_json, parse_yaml
from stallwatch.http import Client, HttpFailed
from stallwatch.logs import get_logger
from stallwatch.settings import SettingsError, read_secret

Labels = dict[str, str]
HTTP_TIMEOUT_SECONDS = 10.0
MECHANISMS = ("file", "http", "kubernetes")


class Source(Protocol):
    """One source of targets. `version` changes with its list."""

    @property
    def version(self) -> int: ...
    def targets(self) -> Sequence[Labels]: ...
    def tick(self, now: float, *, force: bool = False) -> None: ...


@dataclass
class _File:
    """One file as it was last read: `seen` tells one version of it from another."""

    seen: object = None
    targets: list[Labels] = field(default_factory=list)
    error: str = ""


class FileSource:
    """The files of one `file_sd_configs` entry: looked at each tick, read when changed or due."""

    def __init__(self, settings: FileSettings, folder: Path, failures: Counter[str], *, quiet: bool = False) -> None:
        self._patterns = [str(folder / pattern) for pattern in settings.files]
        self._refresh_seconds, self._due = settings.refresh_interval_seconds, float("-inf")
        self._failures, self._log, self._quiet = failures, get_logger("discovery"), quiet
        self._files: dict[str, _File] = {}
        self._lock = threading.Lock()
        self.version = 0

    def targets(self) -> Sequence[Labels]:
        """The labels of each target, file by file in the order of their names."""
        with self._lock:
            return [labels for path in sorted(self._files) for labels in self._files[path].targets]

    def errors(self) -> list[str]:
        """One line for each file that is broken now."""
        with self._lock:
            return [f"{path}: {file.error}" for path, file in sorted(self._files.items()) if file.error]

    def tick(self, now: float, *, force: bool = False) -> None:
        """Look at the files; `force` reads all of them again."""
        with self._lock:
            everything = force or now >= self._due
            if everything:
                self._due = now + self._refresh_seconds
            paths = {path for pattern in self._patterns for path in glob(pattern)}
            for gone in set(self._files) - paths:
                self.version += bool(self._files.pop(gone).targets)
            for path in sorted(paths):
                file, seen = self._files.setdefault(path, _File()), _look(path)
                if everything or seen != file.seen:
                    file.seen = seen
                    self._read(path, file)

    def _read(self, path: str, file: _File) -> None:
        try:
            with open(path, "rb") as opened:
                data = opened.read(MAX_BYTES + 1)
            found = parse_json(data) if path.lower().endswith(".json") else parse_yaml(data)
        except (OSError, TargetsError) as error:
            self._failures["file"] += 1
            text = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
            if text != file.error and not self._quiet:
                self._log.error("targets not usable", file=path, error=text, kept=len(file.targets))
            file.error = text
            return
        if file.error:
            self._log.info("targets usable again", file=path)
        file.error = ""
        found = [{**labels, "__meta_filepath": path} for labels in found]
        if found != file.targets:
            file.targets = found
            self.version += 1


def _look(path: str) -> object:
    try:
        known = Path(path).stat()
    except OSError:
        return None
    return known.st_mtime_ns, known.st_size, known.st_ino


class AskedSource:
    """A source that is asked beside the loop, which a slow answer must not hold. `place` is its address for the log."""

    mechanism = ""

    def __init__(self, refresh_seconds: float, place: str, failures: Counter[str]) -> None:
        self._refresh_seconds, self._place = refresh_seconds, place
        self._failures, self._log = failures, get_logger("discovery")
        self._due = float("-inf")
        self._thread: threading.Thread | None = None
        self._targets: list[Labels] = []
        self._error = ""
        self.version = 0

    def targets(self) -> Sequence[Labels]:
        """The labels of each target of the last good answer."""
        return self._targets

    def tick(self, now: float, *, force: bool = False) -> None:
        """Ask if it is time, or at once with `force`."""
        busy = self._thread is not None and self._thread.is_alive()
        if not busy and (force or now >= self._due):
            self._due = now + self._refresh_seconds
            self._thread = threading.Thread(target=self.fetch, name="discovery-ask", daemon=True)
            self._thread.start()

    def join(self, timeout_seconds: float) -> None:
        """Wait for an answer that is under way."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def fetch(self) -> None:
        """Ask once; a failure keeps the last list."""
        try:
            found = self.ask()
        except (HttpFailed, TargetsError, SettingsError, OSError) as error:
            self._failures[self.mechanism] += 1
            text = error.detail if isinstance(error, HttpFailed) else str(error)
            if text != self._error:
                self._log.error("targets not usable", source=self._place, error=text, kept=len(self._targets))
            self._error = text
            return
        if self._error:
            self._log.info("targets usable again", source=self._place)
        self._error = ""
        if found != self._targets:
            self._targets = found
            self.version += 1

    def ask(self) -> list[Labels]:
        """The targets as they are now. Raises `HttpFailed`, `TargetsError` or `SettingsError`."""
        raise NotImplementedError


class HttpSource(AskedSource):
    """One server that answers with targets as JSON."""

    mechanism = "http"

    def __init__(self, settings: HttpSettings, failures: Counter[str]) -> None:
        super().__init__(settings.refresh_interval_seconds, settings.url.partition("?")[0], failures)
        self._settings = settings

    def ask(self) -> list[Labels]:
        settings = self._settings
        headers = {
            "Accept": "application/json",
            "X-Prometheus-Refresh-Interval-Seconds": f"{settings.refresh_interval_seconds:g}",
        }
        if settings.bearer_token_file is not None:
            headers["Authorization"] = f"Bearer {read_secret(settings.bearer_token_file)}"
        client = Client(headers, ca_file=settings.ca_file)
        try:
            answer = client.request("GET", settings.url, timeout_seconds=HTTP_TIMEOUT_SECONDS, max_bytes=MAX_BYTES)
        finally:
            client.close()
        if answer.status != 200:
            raise TargetsError(f"HTTP status {answer.status}")
        kind: Any = answer.headers.get("content-type", "")
        if kind.partition(";")[0].strip().lower() != "application/json":
            raise TargetsError("the answer's content type is not application/json")
        return [{**labels, "__meta_url": settings.url} for labels in parse_json(answer.body)]
