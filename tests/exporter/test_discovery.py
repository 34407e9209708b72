"""Service discovery: lists that change, break and vanish; never two watches of one name; what a return keeps."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from exporter import discovery as discovery_module
from exporter import sources
from exporter.__main__ import main
from exporter.config import read
from exporter.discovery import Discovery
from exporter.fleet import Shard
from exporter.source_settings import FileSettings, HttpSettings
from exporter.sources import FileSource, HttpSource
from stallwatch.settings import SettingsError
from tests.exporter.servers import answer, hold, once, read_request, scripted

JSON = "application/json"
CONFIG = "discovery: [{file_sd_configs: [{files: ['*.json', '*.yml'], refresh_interval_seconds: 300}]}]\n"


def write(path: Path, *targets: str, **labels: str) -> None:
    """A list of targets, with a time of change of its own."""
    path.write_text(json.dumps([{"targets": targets, "labels": labels}]))
    write.number += 1  # type: ignore[attr-defined]
    os.utime(path, ns=(write.number, write.number))  # type: ignore[attr-defined]


write.number = 0  # type: ignore[attr-defined]


class Clock:
    """A clock that stands until it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Site:
    """A folder of lists and the discovery over it."""

    def __init__(self, folder: Path, text: str = CONFIG, shard: Shard | None = None) -> None:
        (folder / "lists").mkdir(exist_ok=True)
        self.folder, self.clock = folder / "lists", Clock()
        self.config = self.folder / "exporter.cfg"  # beside the lists, and none of them
        self.config.write_text(text)
        self.discovery = Discovery(lambda: read(self.config), (shard or Shard()).has, self.clock)

    def urls(self) -> Mapping[str, str]:
        """The backends by name after looking at all lists."""
        self.discovery.tick()
        return {backend.name: backend.url for backend in self.discovery.current()}

    def refused(self) -> Mapping[str, int]:
        """Refusals by reason, without the zeros."""
        return {reason: number for reason, number in self.discovery.counts().refused.items() if number}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """One list of files, nothing else."""
    made = Site(tmp_path)
    made.discovery.load()
    return made


class TestFiles:
    """file_sd."""

    def test_lists_are_read_when_they_change(self, site: Site) -> None:
        """A new file, a changed one, one that is gone; no refresh is waited for."""
        assert site.urls() == {}
        write(site.folder / "a.json", "h:1", backend="a")
        (site.folder / "b.yml").write_text("- {targets: ['h:2'], labels: {backend: b}}")
        assert site.urls() == {"a": "http://h:1", "b": "http://h:2"}
        assert not site.discovery.tick(), "nothing changed"
        write(site.folder / "a.json", "h:3", backend="a")
        assert site.discovery.tick()
        assert site.urls() == {"a": "http://h:3", "b": "http://h:2"}
        (site.folder / "b.yml").unlink()
        assert site.urls() == {"a": "http://h:3"}

    def test_a_broken_file_keeps_its_last_good_list(self, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
        """Of that file alone; it is counted at each reading and said once, and once more when it is well again."""
        bad, good = site.folder / "bad.json", site.folder / "good.json"
        write(bad, "h:1", backend="a")
        write(good, "h:2", backend="b")
        assert set(site.urls()) == {"a", "b"}
        bad.write_text("[{")
        write(good, "h:3", backend="b")
        assert site.urls() == {"a": "http://h:1", "b": "http://h:3"}
        assert site.discovery.counts().failures == {"file": 1, "http": 0, "kubernetes": 0}
        site.clock.now += 301
        assert set(site.urls()) == {"a", "b"}
        assert site.discovery.counts().failures == {"file": 2, "http": 0, "kubernetes": 0}
        (error,) = site.discovery.file_errors()
        assert error.startswith(f"{bad}: is not JSON: ")
        said = capsys.readouterr()
        assert (said.out + said.err).count("targets not usable") == 1
        write(bad, "h:4", backend="a")
        assert site.urls() == {"a": "http://h:4", "b": "http://h:3"}
        assert site.discovery.file_errors() == []

    def test_a_file_that_was_never_good_has_no_targets(self, site: Site) -> None:
        """A folder of that name, and a list of the wrong form: counted, and the others are read."""
        (site.folder / "x.json").mkdir()
        (site.folder / "y.yml").write_text("hello")
        write(site.folder / "z.json", "h:1", backend="a")
        assert set(site.urls()) == {"a"}
        assert site.discovery.counts().failures["file"] == 2

    def test_the_file_is_a_label(self, tmp_path: Path) -> None:
        """`__meta_filepath`, as Prometheus sets it, can name the group."""
        path = tmp_path / "llama.json"
        write(path, "h:1")
        source = FileSource(FileSettings(files=["*.json"]), tmp_path, Counter())
        source.tick(0.0)
        assert source.targets() == [{"__meta_filepath": str(path), "__address__": "h:1"}]

    def test_names_of_files_may_hold_anything(self, site: Site) -> None:
        """A new line in the name of a file is one line in the log and no failure."""
        write(site.folder / "a\nb.json", "h:1", backend="a")
        assert set(site.urls()) == {"a"}


class TestHttp:
    """http_sd."""

    def source(self, url: str, failures: Counter[str], **more: str) -> HttpSource:
        return HttpSource(HttpSettings.model_validate({"url": url, **more}), failures)

    def test_a_list_is_asked_for_as_prometheus_does(self, tmp_path: Path) -> None:
        """The headers that say who asks and how often, the token of the file as it is now, and `__meta_url`."""
        token, seen = tmp_path / "token", list[bytes]()
        token.write_text("first\n")

        def script(connection: socket.socket) -> None:
            seen.append(read_request(connection))
            body = b'[{"targets": ["h:1"]}]'
            connection.sendall(answer(body=body, Content_Type=f"{JSON}; charset=utf-8"))

        with scripted(script) as url:
            source = self.source(f"{url}/list?x=1", Counter(), bearer_token_file=str(token))
            source.fetch()
            token.write_text("second")
            source.fetch()
        assert source.targets() == [{"__address__": "h:1", "__meta_url": f"{url}/list?x=1"}]
        assert source.version == 1, "an equal list is no change"
        assert seen[0].startswith(b"GET /list?x=1 HTTP/1.1\r\n")
        for header in (b"Accept: application/json", b"X-Prometheus-Refresh-Interval-Seconds: 60"):
            assert header in seen[0]
        assert b"Authorization: Bearer first" in seen[0]
        assert b"Authorization: Bearer second" in seen[1]

    @pytest.mark.parametrize(
        "reply",
        [
            answer("503 Service Unavailable", b"[]", Content_Type=JSON),
            answer("204 No Content", b"", Content_Type=JSON),
            answer(body=b"[]", Content_Type="text/html"),
            answer(body=b"[]"),
            answer(body=b"[{", Content_Type=JSON),
            answer(body=b'[{"targets": [1]}]', Content_Type=JSON),
            answer("302 Found", b"", Location="http://example.org/"),
            b"no HTTP",
        ],
        ids=["503", "204", "html", "no-type", "cut", "number", "elsewhere", "noise"],
    )
    def test_a_failure_keeps_the_last_list(self, reply: bytes) -> None:
        """Whatever is no list of targets: the last one stays, and it is counted."""
        failures: Counter[str] = Counter()
        replies = [answer(body=b'[{"targets": ["h:1"]}]', Content_Type=JSON), reply]

        def script(connection: socket.socket) -> None:
            once(replies.pop(0))(connection)

        with scripted(script) as url:
            source = self.source(url, failures)
            source.fetch()
            source.fetch()
        assert [labels["__address__"] for labels in source.targets()] == ["h:1"]
        assert failures == {"http": 1}

    def test_a_server_that_hangs_holds_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is asked beside the loop, once at a time, and given up at its deadline; nobody there is a failure too."""
        monkeypatch.setattr(sources, "HTTP_TIMEOUT_SECONDS", 0.3)
        with scripted(hold) as url:
            site = Site(tmp_path, f"discovery: [{{http_sd_configs: [{{url: '{url}'}}]}}]")
            began = time.monotonic()
            site.discovery.load()
            site.discovery.load()
            site.discovery.tick()
            assert time.monotonic() - began < 0.3
            assert sum(thread.name == "discovery-ask" for thread in threading.enumerate()) == 1
            _settle(site)
        assert site.discovery.counts().failures == {"file": 0, "http": 1, "kubernetes": 0}
        site.clock.now += 61
        site.discovery.tick()
        _settle(site)
        assert site.discovery.counts().failures == {"file": 0, "http": 2, "kubernetes": 0}

    def test_reload_asks_at_once_and_keeps_the_list_meanwhile(self, tmp_path: Path) -> None:
        """A reload drops no backend whose server is slow to answer again."""
        replies = [answer(body=b'[{"targets": ["h:1"]}]', Content_Type=JSON)]
        with scripted(lambda connection: once(replies.pop(0))(connection) if replies else hold(connection)) as url:
            site = Site(tmp_path, f"discovery: [{{http_sd_configs: [{{url: '{url}'}}]}}]")
            assert site.discovery.load() == []
            _settle(site)
            assert site.discovery.tick()
            assert [backend.url for backend in site.discovery.load()] == ["http://h:1"]


def _settle(site: Site) -> None:
    """Wait for questions to servers that are under way."""
    for source in site.discovery._sources.values():
        if isinstance(source, HttpSource):
            source.join(5)


class TestNames:
    """Never two watches of one name, nor two names of one server."""

    def test_a_backend_of_the_file_goes_first(self, tmp_path: Path) -> None:
        """Its name and its address are taken; the same server under its own name is no fault."""
        site = Site(tmp_path, CONFIG + "backends: [{name: a, url: 'http://h:1'}]\n")
        write(tmp_path / "lists" / "x.json", "h:9", backend="a")
        write(tmp_path / "lists" / "y.json", "h:1", backend="b")
        site.discovery.load()
        assert site.urls() == {"a": "http://h:1"}
        assert site.refused() == {"duplicate_name": 1, "duplicate_url": 1}
        write(tmp_path / "lists" / "x.json", "h:1", backend="a")
        write(tmp_path / "lists" / "y.json", "h:2", backend="b")
        assert site.urls() == {"a": "http://h:1", "b": "http://h:2"}
        assert site.refused() == {}

    def test_who_is_watched_stays(self, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
        """A list that comes first in order cannot take the name, or the server, of one that is watched already."""
        write(site.folder / "m.json", "h:1", backend="a")
        assert site.urls() == {"a": "http://h:1"}
        write(site.folder / "b.json", "h:2", backend="a")
        write(site.folder / "c.json", "h:1", backend="other")
        for _ in range(2):
            assert site.urls() == {"a": "http://h:1"}
        assert site.refused() == {"duplicate_name": 1, "duplicate_url": 1}
        said = capsys.readouterr()
        assert (said.out + said.err).count("target refused") == 2, "said once each"
        (site.folder / "m.json").unlink()
        assert site.urls() == {"a": "http://h:2", "other": "http://h:1"}

    def test_equal_targets_are_one(self, site: Site) -> None:
        """Two lists that say the same of one backend are no fault."""
        write(site.folder / "a.json", "h:1", backend="a")
        write(site.folder / "b.json", "h:1", backend="a")
        assert site.urls() == {"a": "http://h:1"}
        assert site.refused() == {}

    @pytest.mark.parametrize(
        "labels", [{"runtime": "vlm"}, {"__limit_stuck_after_seconds__": "1"}, {"backend": "a\nb"}]
    )
    def test_a_target_that_makes_no_backend_leaves_the_others(self, site: Site, labels: dict[str, str]) -> None:
        """An unknown kind of server, limits that contradict each other, a name with a new line."""
        write(site.folder / "a.json", "h:1", **labels)
        write(site.folder / "b.json", "h:2", backend="b")
        assert set(site.urls()) == {"b"}
        assert site.refused() == {"unusable": 1}

    def test_a_flood_displaces_nobody(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """Above the cap the new ones are refused, not those that are watched."""
        monkeypatch.setattr(discovery_module, "MOST_BACKENDS", 3)
        write(site.folder / "z.json", "z:1", "z:2")
        assert set(site.urls()) == {"z_1", "z_2"}
        write(site.folder / "a.json", *(f"a:{port}" for port in range(1, 500)))
        assert set(site.urls()) == {"z_1", "z_2", "a_1"}
        assert site.refused() == {"too_many": 498}

    def test_shards_share_what_is_discovered(self, tmp_path: Path) -> None:
        """Each backend is watched by one of three, in the division of the configured ones."""
        names: list[str] = []
        for number in (1, 2, 3):
            site = Site(tmp_path, shard=Shard(number, 3))
            write(site.folder / "a.json", *(f"h:{port}" for port in range(1, 31)))
            site.discovery.load()
            found = list(site.urls())
            assert 0 < len(found) < 30
            names += found
        assert sorted(names) == sorted(f"h_{port}" for port in range(1, 31))


def test_relabelling_names_and_groups(tmp_path: Path) -> None:
    """Names come from labels, one target is dropped, and the limits of the list hold."""
    rules = [
        {"source_labels": ["env"], "regex": "dev", "action": "drop"},
        {"source_labels": ["host"], "regex": "(.*)[.]example", "target_label": "backend"},
        {"source_labels": ["model"], "target_label": "group"},
    ]
    entry = {
        "file_sd_configs": [{"files": ["*.json"]}],
        "relabel_configs": rules,
        "limits": {"stuck_after_seconds": 99},
    }
    site = Site(tmp_path, json.dumps({"discovery": [entry]}))
    write(site.folder / "a.json", "h:1", host="gb10.example", model="llama", env="prod")
    write(site.folder / "b.json", "h:2", host="dev.example", env="dev")
    (backend,) = site.discovery.load()
    assert (backend.name, backend.group, backend.limits.stuck_after_seconds) == ("gb10", "llama", 99)


def test_a_key_that_cannot_be_read_for_once_ends_no_watch(tmp_path: Path) -> None:
    """While somebody replaces the file of a key, another list changes: who is watched stays, the new one waits."""
    key = tmp_path / "key"
    key.write_text("sk-1")
    site = Site(tmp_path, f"discovery: [{{file_sd_configs: [{{files: ['*.json']}}], ask: {{api_key_file: {key}}}}}]")
    write(site.folder / "a.json", "h:1", backend="a")
    (watched,) = site.discovery.load()
    assert watched.api_key == "sk-1"
    key.unlink()
    write(site.folder / "b.json", "h:2", backend="b")
    site.discovery.tick()
    assert site.discovery.current() == [watched]
    assert site.refused() == {"unusable": 1}
    with pytest.raises(SettingsError, match="api_key_file"):
        site.discovery.load()
    key.write_text("sk-2")
    assert [backend.api_key for backend in site.discovery.current()] == ["sk-2", "sk-2"]


def test_a_bad_configuration_changes_nothing(site: Site) -> None:
    """A reload that fails leaves lists, sources and backends as they were."""
    write(site.folder / "a.json", "h:1", backend="a")
    assert set(site.urls()) == {"a"}
    site.config.write_text("discovery: [{file_sd_configs: [{files: [x]}]}]")
    with pytest.raises(SettingsError, match="must end with"):
        site.discovery.load()
    assert set(site.urls()) == {"a"}


def test_the_loop_applies_changes_and_survives(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that fails in a way nobody thought of does not end the looking."""
    monkeypatch.setattr(discovery_module, "TICK_SECONDS", 0.01)
    stop, changed, ticks = threading.Event(), threading.Event(), iter([RuntimeError("unthought of"), None])

    def tick() -> bool:
        if fault := next(ticks, None):
            raise fault
        return True

    monkeypatch.setattr(site.discovery, "tick", tick)
    loop = threading.Thread(target=site.discovery.run, args=(stop, changed.set))
    loop.start()
    assert changed.wait(5)
    stop.set()
    loop.join(5)


def test_config_check_reads_the_lists(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    """A broken list is one line and exit code 2; a good one is counted. No server is asked."""
    argv = ["--config.file", str(site.config), "--config.check"]
    site.config.write_text(CONFIG.replace("}]}]", "}], http_sd_configs: [{url: 'http://127.0.0.1:1'}]}]"))
    write(site.folder / "a.json", "h:1", "h:2")
    assert main(argv) == 0
    assert capfd.readouterr().out == f"{site.config}: valid, 2 backends\n"
    (site.folder / "b.json").write_text("[")
    assert main(argv) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"stallwatch-exporter: {site.folder}/b.json: is not JSON: ")
    assert said.err.count("\n") == 1


def test_the_example_loads() -> None:
    """config/discovery.yml is a configuration."""
    example = Path(__file__).parent.parent.parent / "config" / "discovery.yml"
    found = Discovery(lambda: read(example))
    assert [backend.name for backend in found.load(checking=True)] == ["gb10-a", "gb10-b"]
    assert found.file_errors() == []
