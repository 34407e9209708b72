"""The client on real sockets: one deadline, one cap, a typed failure for everything else, and no secret elsewhere."""

from __future__ import annotations

import gzip
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallwatch.http import MOST_PREPARED, Client, HttpFailed, Response
from tests.exporter.servers import Script, answer, dribble, hold, once, read_request, scripted

SHORT = 0.4
"""The deadline where it is what ends the exchange."""
PLENTY = 20.0
"""The deadline where something else must end it, on a busy machine too."""
SLACK = 5.0
OK = b"HTTP/1.1 200 OK\r\n"


def get(url: str, max_bytes: int = 100_000, client: Client | None = None, seconds: float = PLENTY) -> Response:
    """One GET within the deadline, whatever comes of it; a client of its own unless one is given."""
    used, began = client or Client(), time.monotonic()
    try:
        return used.request("GET", url, timeout_seconds=seconds, max_bytes=max_bytes)
    finally:
        if client is None:
            used.close()
        assert time.monotonic() - began < seconds + SLACK, "the deadline did not hold"


def failure(script: Script, max_bytes: int = 100_000, seconds: float = PLENTY) -> HttpFailed:
    """What a GET of a scripted server fails with."""
    with scripted(script) as url, pytest.raises(HttpFailed) as caught:
        get(url + "/metrics", max_bytes, seconds=seconds)
    return caught.value


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"hello world", "invalid"),
        (b"\x00\xff\xfe\r\n\r\n", "invalid"),
        (b"HTTP/1.1 abc\r\n\r\n", "invalid"),
        (b"HTTP/1.1 20000 OK\r\n\r\n", "invalid"),
        (b"HTTP/9.9 200 OK\r\n\r\n", "invalid"),
        (OK + b"Content-Length: abc\r\n\r\nhello", "invalid"),
        (OK + b"Content-Length: -5\r\n\r\nhello", "invalid"),
        (OK + b"Content-Length: +5\r\n\r\nhello", "invalid"),
        (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "invalid"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello", "invalid"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello", "invalid"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 200_000, "invalid"),
        (OK + b"A: b\r\n" * 1000 + b"\r\n", "invalid"),
        (OK + b"A: " + b"b" * 200_000 + b"\r\n\r\n", "invalid"),
        (OK + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello", "invalid"),
        (OK + b"Content-Encoding: " + b"gzip," * 9 + b"gzip\r\nContent-Length: 5\r\n\r\nhello", "invalid"),
        (b"", "reset"),
        (OK + b"Content-Length: 500\r\n\r\nhello", "reset"),
        (OK + b"Content-Length: 99999999999999999999\r\n\r\nhello", "reset"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n10\r\nhello", "reset"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "reset"),
    ],
)
def test_garbled_answers(reply: bytes, reason: str) -> None:
    """What is no HTTP is invalid, what ends too soon a reset, and no other exception gets out."""
    assert failure(once(reply)).reason == reason


@pytest.mark.parametrize(
    "head",
    [
        b"Set-Cookie: a=b; expires=\xff; max-age=x; domain=..; path=\x00\r\n",
        b"Content-Type: text/plain; charset=\xff;;=\r\n",
        b"no colon\r\n",
        b"Location: http://elsewhere.invalid/\r\n",
    ],
)
def test_odd_headers_do_no_harm(head: bytes) -> None:
    """A body is a body."""
    with scripted(once(OK + b"Content-Length: 2\r\n" + head + b"\r\nok")) as url:
        assert get(url).status == 200


def test_how_far_it_came() -> None:
    """Refused, silent, one byte, cut after the head: connected, written, received, status."""

    def far(failed: HttpFailed) -> tuple[str, bool, bool, bool, int | None]:
        return failed.reason, failed.connected, failed.written, failed.received, failed.status

    def one_byte(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"H")
        connection.recv(1)

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(HttpFailed) as caught:
            get(f"http://127.0.0.1:{unused.getsockname()[1]}/")
    assert far(caught.value) == ("refused", False, False, False, None)
    assert far(failure(hold, seconds=SHORT)) == ("timeout", True, True, False, None)
    assert far(failure(one_byte, seconds=SHORT)) == ("timeout", True, True, True, None)
    assert far(failure(once(b""))) == ("reset", True, True, False, None)
    assert far(failure(once(OK + b"Content-Length: 9\r\n\r\ncut"))) == ("reset", True, True, True, 200)
    assert far(failure(once(answer(body=b"x" * 999)), 10)) == ("too_large", True, True, True, 200)


def test_no_time_left() -> None:
    """Nothing is sent."""
    requests: list[bytes] = []

    def script(connection: socket.socket) -> None:
        requests.append(read_request(connection))

    client = Client()
    with scripted(script) as url, pytest.raises(HttpFailed, match="timeout"):
        client.request("GET", url, timeout_seconds=0, max_bytes=10)
    client.close()
    assert requests == []


@pytest.mark.parametrize("url", ["ftp://a/", "http:///", "http://[", "nothing", "http://a b/", "http://" + "a" * 300])
def test_what_is_no_address(url: str) -> None:
    """A failure like any other, whatever it is called."""
    with pytest.raises(HttpFailed):
        get(url)


@pytest.mark.parametrize("name", ["X-A\r\nX-B", "X-日", "X-A"])
@pytest.mark.parametrize("value", ["0\r\nX-Evil: 1", "日"])
def test_headers_that_cannot_be_sent(name: str, value: str) -> None:
    """A label of a page becomes a header; what would split a request is refused."""
    client = Client({name: value})
    with scripted(once(answer())) as url, pytest.raises(HttpFailed, match="invalid"):
        get(url, client=client)
    client.close()


def test_dribbled() -> None:
    """Neither a head nor a body that comes byte by byte outlasts the deadline; nor do answers that only redirect."""
    assert failure(dribble(answer(body=b"x" * 1000)), seconds=SHORT).reason == "timeout"

    def body(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(OK + b"Content-Length: 1000\r\n\r\n")
        dribble_on(connection)

    def dribble_on(connection: socket.socket) -> None:
        while True:
            connection.sendall(b"x")
            time.sleep(0.03)

    assert failure(body, seconds=SHORT).reason == "timeout"

    def slow_redirects(connection: socket.socket) -> None:
        while read_request(connection):
            time.sleep(0.15)
            connection.sendall(answer("307 Temporary Redirect", Location="/again"))

    def continues(connection: socket.socket) -> None:
        read_request(connection)
        while True:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    assert failure(continues, seconds=SHORT).reason == "timeout"
    assert failure(slow_redirects, seconds=SHORT).reason == "timeout"


def test_compressed_when_asked_for() -> None:
    """Identity is the default; who asks for gzip gets the decoded body, capped by its decoded size."""
    asked: list[bytes] = []

    def script(connection: socket.socket) -> None:
        request = read_request(connection)
        asked.append(next(line for line in request.split(b"\r\n") if line.lower().startswith(b"accept-encoding")))
        connection.sendall(answer(body=gzip.compress(b"x" * 50_000), Content_Encoding="gzip"))

    with scripted(script) as url:
        plain, packed = Client(), Client({"Accept-Encoding": "gzip"})
        assert get(url, client=plain).body == get(url, client=packed).body == b"x" * 50_000
        with pytest.raises(HttpFailed, match="too_large"):
            get(url, 49_999, packed)
        plain.close()
        packed.close()
    assert asked == [b"Accept-Encoding: identity", b"Accept-Encoding: gzip", b"Accept-Encoding: gzip"]


class Counted:
    """A server that counts its connections and closes each, unannounced, after `answers` answers."""

    def __init__(self, answers: int) -> None:
        self.answers, self.connections = answers, 0

    def __call__(self, connection: socket.socket) -> None:
        self.connections += 1
        for _ in range(self.answers):
            if not read_request(connection):
                return
            connection.sendall(answer(body=b"ok"))


def test_the_connection_is_kept() -> None:
    """One connection for many requests."""
    server = Counted(100)
    with scripted(server) as url:
        client = Client()
        assert [get(url, client=client).body for _ in range(10)] == [b"ok"] * 10
        client.close()
    assert server.connections == 1


def test_a_kept_connection_that_was_closed_is_tried_once_more() -> None:
    """Closed between two requests, or on the arrival of the second: silently a new one. A new one is not retried."""
    server = Counted(1)
    with scripted(server) as url:
        client = Client()
        assert [get(url, client=client).body for _ in range(3)] == [b"ok"] * 3
        client.close()
    assert server.connections == 3

    arrivals: list[int] = []

    def closes_on_the_second(connection: socket.socket) -> None:
        arrivals.append(0)
        read_request(connection)
        connection.sendall(answer(body=b"ok"))
        read_request(connection)  # and closes without a byte

    with scripted(closes_on_the_second) as url:
        client = Client()
        assert [get(url, client=client).body for _ in range(2)] == [b"ok"] * 2
        client.close()
    assert len(arrivals) == 2

    refusals: list[int] = []

    def closes_at_once(connection: socket.socket) -> None:
        refusals.append(0)
        read_request(connection)

    assert failure(closes_at_once).reason == "reset"
    assert len(refusals) == 1


def test_after_a_failure_the_next_request_is_clean() -> None:
    """What a failed exchange left unread never becomes the next answer."""
    replies = iter(
        [answer(body=b"x" * 5000), OK + b"Content-Length: x\r\n\r\n" + answer(body=b"bad"), answer(body=b"ok")]
    )

    def script(connection: socket.socket) -> None:
        while read_request(connection):
            connection.sendall(next(replies))

    with scripted(script) as url:
        client = Client()
        for expected in ("too_large", "invalid"):
            with pytest.raises(HttpFailed, match=expected):
                get(url, 1000, client)
        assert get(url, 1000, client).body == b"ok"
        client.close()


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.2:1/",
        "http://127.0.0.1:1/",
        "//127.0.0.2/",
        "https://127.0.0.1/",
        "ftp://127.0.0.1/",
        "javascript:alert(1)",
        "http://[",
        "http://127.0.0.1:99999/",
        "http://user@127.0.0.1/",
        "/again",
        "",
    ],
)
def test_redirects_elsewhere_are_refused(location: str) -> None:
    """Another host, port or scheme, no address at all, or a loop: one failure, with the status."""
    failed = failure(once(answer("302 Found", Location=location), keep=True))
    assert (failed.reason, failed.status, failed.connected, failed.received) == ("redirect", 302, True, True)
    assert "127.0.0" not in failed.detail


def test_redirects_to_the_same_server_are_followed() -> None:
    """Three of them, with the credentials, which go nowhere else; a POST is never repeated elsewhere."""
    seen: list[bytes] = []

    def script(connection: socket.socket) -> None:
        while request := read_request(connection):
            path = request.split()[1]
            seen.append(path)
            assert b"Authorization: Bearer hunter2" in request
            host = next(line for line in request.split(b"\r\n") if line.startswith(b"Host: ")).removeprefix(b"Host: ")
            there = {b"/0": "/1", b"/1": f"http://{host.decode()}/2", b"/2": "3"}.get(path)
            connection.sendall(answer("302 Found", Location=there) if there else answer(body=b"ok"))

    with scripted(script) as url:
        client = Client({"Authorization": "Bearer hunter2"})
        assert get(url + "/0", client=client).body == b"ok"
        assert seen == [b"/0", b"/1", b"/2", b"/3"]
        response = client.request("POST", url + "/0", timeout_seconds=PLENTY, max_bytes=1000, json={})
        assert response.status == 302
        client.close()


def test_a_server_cannot_fill_the_memory_by_redirects() -> None:
    """Prepared requests are kept for a few addresses, however many a server invents."""
    number = iter(range(10_000))

    def script(connection: socket.socket) -> None:
        while request := read_request(connection):
            first = request.startswith(b"GET /metrics ")
            there = f"/{next(number)}"
            connection.sendall(answer("302 Found", Location=there) if first else answer(body=b"ok"))

    with scripted(script) as url:
        client = Client()
        for _ in range(2 * MOST_PREPARED):
            assert get(url + "/metrics", client=client).body == b"ok"
        assert len(client._prepared) <= MOST_PREPARED
        client.close()


def test_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a proxy nor a .netrc comes between."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password hunter2\n")
    for name, value in {
        "NETRC": str(netrc),
        "http_proxy": "http://127.0.0.1:9",
        "ALL_PROXY": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    requests: list[bytes] = []

    def script(connection: socket.socket) -> None:
        requests.append(read_request(connection))
        connection.sendall(answer(body=b"ok"))

    with scripted(script) as url:
        assert get(url).body == b"ok"
    assert b"Authorization" not in requests[0]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of 127.0.0.1 with its key in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate of this test, is not installed")
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=stallwatch test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", path, "-out", path.with_suffix(".crt")], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + path.with_suffix(".crt").read_bytes())
    return path


@pytest.fixture
def over_tls(certificate: Path) -> Callable[[Script], Script]:
    """A script that speaks TLS first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def wrap(script: Script) -> Script:
        def wrapped(connection: socket.socket) -> None:
            with context.wrap_socket(connection, server_side=True) as secured:
                script(secured)

        return wrapped

    return wrap


@pytest.fixture
def tls_client(certificate: Path) -> Iterator[Client]:
    """A client that trusts the certificate."""
    client = Client(ca_file=str(certificate.with_suffix(".crt")))
    yield client
    client.close()


def test_tls(over_tls: Callable[[Script], Script], tls_client: Client) -> None:
    """Trusted when its authority is named, on a kept connection; refused otherwise, before anything is sent."""
    server = Counted(5)
    with scripted(over_tls(server)) as url:
        secure = url.replace("http:", "https:")
        assert [get(secure, client=tls_client).body for _ in range(3)] == [b"ok"] * 3
        assert server.connections == 1
        with pytest.raises(HttpFailed) as caught:
            get(secure)
        tls_client.close()
    assert (caught.value.reason, caught.value.written, caught.value.received) == ("invalid", False, False)
    assert caught.value.detail.startswith("TLS: self")


@pytest.mark.parametrize("script", [hold, dribble(answer(body=b"x" * 1000))], ids=["hold", "dribble"])
def test_tls_has_the_same_deadline(over_tls: Callable[[Script], Script], tls_client: Client, script: Script) -> None:
    """Silent, or byte by byte."""
    with scripted(over_tls(script)) as url, pytest.raises(HttpFailed) as caught:
        get(url.replace("http:", "https:"), client=tls_client, seconds=1.5)  # of which the handshake needs a part
    assert (caught.value.reason, caught.value.written) == ("timeout", True)
    assert caught.value.received is (script is not hold)


def test_tls_that_is_not_answered(tls_client: Client) -> None:
    """A server that never shakes hands, and one that speaks plain HTTP: nothing was written to an engine."""

    def plain(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer("400 Bad Request"))
        connection.recv(65536)

    for script, seconds, reason in ((mute, SHORT, "timeout"), (plain, PLENTY, "invalid")):
        with scripted(script) as url, pytest.raises(HttpFailed) as caught:
            get(url.replace("http:", "https:"), client=tls_client, seconds=seconds)
        assert (caught.value.reason, caught.value.written) == (reason, False)


def mute(connection: socket.socket) -> None:
    """Take what comes and say nothing."""
    while connection.recv(65536):
        pass


def test_two_threads_with_a_client_each_do_not_meet() -> None:
    """A silent server takes nothing from the deadline of an exchange on another thread."""
    with scripted(hold) as silent, scripted(once(answer(body=b"ok"), keep=True)) as quick:
        results: list[str] = []

        def ask_silent() -> None:
            try:
                get(silent, seconds=SHORT)
            except HttpFailed as failed:
                results.append(failed.reason)

        thread = threading.Thread(target=ask_silent)
        thread.start()
        client = Client()
        while thread.is_alive():
            assert get(quick, client=client).body == b"ok"
        client.close()
        thread.join()
    assert results == ["timeout"]
