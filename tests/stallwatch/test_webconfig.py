"""`--web.config.file`: files that the real promtool takes are taken here; TLS and users on real sockets."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from stallwatch import guard as guard_module
from stallwatch import serving, webconfig
from stallwatch.guard import AT_ONCE, KEPT, Busy, Guard
from stallwatch.serving import Server
from stallwatch.settings import SettingsError
from stallwatch.webconfig import WebConfig
from tests import certificates
from tests.tools import run_tool

GET = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
KEEP = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
SLACK = 4.0
PAIR = "cert_file: server.crt, key_file: server.key"
TLS = f"tls_server_config: {{{PAIR}}}\n"


def hashed(password: str) -> str:
    """A bcrypt hash of the least cost."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


HASH = hashed("secret")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two authorities, a server's and two clients' certificates."""
    folder = tmp_path_factory.mktemp("certificates")
    certificates.make(folder, "ca")
    certificates.make(folder, "stranger")
    certificates.make(folder, "server", "ca")
    certificates.make(folder, "client", "ca")
    certificates.make(folder, "foreign", "stranger")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of its own for a test that changes files."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def tls(more: str) -> str:
    """A file with certificates and some more."""
    return f"tls_server_config: {{{PAIR}, {more}}}"


BOTH_TAKE = [
    ("nothing set", "{}"),
    ("sections without content", "tls_server_config:\nbasic_auth_users:\nhttp_server_config:\n"),
    ("an empty section", "tls_server_config: {}"),
    ("a certificate", TLS),
    ("the newest version only", tls("min_version: TLS13")),
    ("from the oldest version on", tls("min_version: TLS10")),
    ("an older newest version", tls("min_version: TLS12, max_version: TLS12")),
    ("no client certificate", tls("client_auth_type: NoClientCert")),
    ("a certificate that nobody looks at", tls("client_auth_type: RequestClientCert")),
    ("a certificate if there is one", tls("client_auth_type: VerifyClientCertIfGiven, client_ca_file: ca.crt")),
    ("a certificate of this authority", tls("client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt")),
    ("a certificate of the system's", tls("client_auth_type: RequireAndVerifyClientCert")),
    ("suites", tls("cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]")),
    ("an old suite", tls("cipher_suites: [TLS_RSA_WITH_AES_256_CBC_SHA, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256]")),
    ("the client's choice of suites", tls("prefer_server_cipher_suites: false")),
    ("one curve", tls("curve_preferences: [CurveP256]")),
    ("users", f"basic_auth_users: {{a: {HASH}, b: $2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi}}"),
    ("headers", "http_server_config: {http2: false, headers: {X-Frame-Options: deny, Content-Security-Policy: a}}"),
]
BOTH_REFUSE = [
    ("an unknown section", "tls: {}", "tls: unknown key"),
    ("an unknown key", tls("cert: x"), "tls_server_config.cert: unknown key"),
    ("no key", "tls_server_config: {cert_file: server.crt}", "tls_server_config.key_file: is missing"),
    ("no certificate", "tls_server_config: {key_file: server.key}", "tls_server_config.cert_file: is missing"),
    ("an authority alone", "tls_server_config: {client_ca_file: ca.crt}", "cert_file: is missing"),
    ("no such file", "tls_server_config: {cert_file: x, key_file: y}", "cannot be used: No such file"),
    (
        "the key of another",
        "tls_server_config: {cert_file: server.crt, key_file: ca.key}",
        "cannot be used: KEY_VALUES",
    ),
    ("no certificate in it", "tls_server_config: {cert_file: server.key, key_file: server.key}", "cannot be used"),
    ("an unknown version", tls("min_version: TLS14"), "min_version: must be one of"),
    ("an unknown way", tls("client_auth_type: Maybe"), "client_auth_type: must be one of"),
    ("an authority for nobody", tls("client_ca_file: ca.crt"), "client_ca_file: needs a client_auth_type"),
    (
        "no such authority",
        tls("client_auth_type: RequireAndVerifyClientCert, client_ca_file: x"),
        "client_ca_file: cannot be used: No such file",
    ),
    ("an unknown suite", tls("cipher_suites: [RC4]"), "is no name of a cipher suite"),
    ("an unknown curve", tls("curve_preferences: [P1]"), "must be one of"),
    ("a password that is no hash", "basic_auth_users: {a: secret}", "basic_auth_users.a: is no bcrypt hash"),
    ("a header that may not be set", "http_server_config: {headers: {X-Foo: a}}", "'X-Foo' cannot be set"),
    ("a header in other letters", "http_server_config: {headers: {x-frame-options: deny}}", "cannot be set"),
    (
        "a value that is none",
        "http_server_config: {headers: {X-Frame-Options: all}}",
        "must be one of deny, sameorigin",
    ),
    ("a list", "[]", "must be a mapping"),
]
OURS_REFUSE = [
    ("an empty file", "", "is empty"),
    ("any certificate at all", tls("client_auth_type: RequireAnyClientCert"), "are not supported"),
    ("several curves", tls("curve_preferences: [CurveP256, X25519]"), "more than one is not supported"),
    ("nothing that is safe", tls("min_version: TLS10, max_version: TLS11"), "must be at least TLS12"),
    ("versions the wrong way round", tls("min_version: TLS13, max_version: TLS12"), "must be at least TLS12"),
]


@pytest.mark.parametrize("text", [text for _, text in BOTH_TAKE], ids=[name for name, _ in BOTH_TAKE])
def test_files_that_both_take(text: str, folder: Path) -> None:
    """Every one of them can be used as it is."""
    path = folder / "web.yml"
    path.write_text(text)
    assert WebConfig(path).tls is ("cert_file" in text)


@pytest.mark.parametrize(
    ("text", "words"),
    [case[1:] for case in BOTH_REFUSE + OURS_REFUSE],
    ids=[case[0] for case in BOTH_REFUSE + OURS_REFUSE],
)
def test_files_that_are_refused(text: str, words: str, folder: Path) -> None:
    """One line that names the file and the place, and shows no secret."""
    path = folder / "web.yml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=words) as caught:
        WebConfig(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "secret" not in str(caught.value)


def test_a_curve_that_this_python_may_not_have(folder: Path) -> None:
    """Some builds of Python cannot be told X25519 by name: it is used, or refused in one line."""
    path = folder / "web.yml"
    path.write_text(tls("curve_preferences: [X25519]"))
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ecdh_curve("X25519")
    except ssl.SSLError:
        with pytest.raises(SettingsError, match=r"curve_preferences: X25519 is not to be had from this Python"):
            WebConfig(path)
    else:
        assert WebConfig(path).tls


def test_the_real_exporter_toolkit_judges_alike(folder: Path) -> None:
    """promtool takes and refuses the same files, but for those where this program says that it is stricter."""
    texts = [text for _, text in BOTH_TAKE] + [case[1] for case in BOTH_REFUSE + OURS_REFUSE]
    paths = [folder / f"web-{number}.yml" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    said = run_tool("promtool", "check", "web-config", *paths).stdout
    takes = [f"{path} SUCCESS" in said for path in paths]
    assert takes == [True] * len(BOTH_TAKE) + [False] * len(BOTH_REFUSE) + [True] * len(OURS_REFUSE), said


def test_an_encrypted_key_asks_nobody(folder: Path) -> None:
    """It would wait for a person at a terminal."""
    certificates._openssl("ec", "-in", folder / "server.key", "-aes256", "-passout", "pass:x", "-out", folder / "e.key")
    path = folder / "web.yml"
    path.write_text("tls_server_config: {cert_file: server.crt, key_file: e.key}")
    with pytest.raises(SettingsError, match="the key is encrypted"):
        WebConfig(path)


def test_without_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users need bcrypt; the error says what to install."""
    monkeypatch.setattr(webconfig, "find_spec", lambda name: None)
    path = folder / "web.yml"
    path.write_text(f"basic_auth_users: {{a: {HASH}}}")
    with pytest.raises(SettingsError, match=r"needs the extra web-auth \(pip install 'stallwatch\[web-auth\]'\)"):
        WebConfig(path)


class Clock:
    """A clock that stands until it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def app(environ: Mapping[str, Any], start: Callable[..., object]) -> list[bytes]:
    """Answers with the size of the body; /large is more than buffers hold."""
    body = environ["wsgi.input"].read()
    answer = b"x" * 3_000_000 if environ["PATH_INFO"] == "/large" else str(len(body)).encode()
    start("200 OK", [("Content-Length", str(len(answer))), ("X-XSS-Protection", "own")])
    return [answer]


class Site:
    """A folder with certificates, and a server by the file in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path, self.clock = folder, folder / "web.yml", Clock()
        self.server: Server | None = None

    def start(self, text: str, threads: int = 2) -> Server:
        self.path.write_text(text)
        self.server = Server(app, "127.0.0.1:0", threads=threads, web=WebConfig(self.path, self.clock))
        self.server.start()
        return self.server

    def rewrite(self, text: str) -> None:
        """Change the file, and let the time come at which it is looked at."""
        self.path.write_text(text)
        self.clock.now += 2

    def plain(self) -> socket.socket:
        assert self.server is not None
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=10)

    def trust(self, authority: str = "ca") -> ssl.SSLContext:
        """A client's context that verifies the server."""
        return ssl.create_default_context(cafile=self.folder / f"{authority}.crt")

    def get(self, context: ssl.SSLContext | None = None, request: bytes = GET) -> bytes:
        """All that comes back until the server closes."""
        context = context or self.trust()
        with self.plain() as raw, context.wrap_socket(raw, server_hostname="localhost") as client:
            client.sendall(request)
            return _all(client)

    def http(self, *headers: str, path: str = "/") -> bytes:
        """The same without TLS, with more headers."""
        lines = [f"GET {path} HTTP/1.1", "Host: a", "Connection: close", *headers]
        with self.plain() as client:
            client.sendall("\r\n".join([*lines, "", ""]).encode())
            return _all(client)


def _all(client: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while part := client.recv(65536):
            parts.append(part)
    return b"".join(parts)


@pytest.fixture
def site(folder: Path) -> Iterator[Site]:
    """Its server ends with the test, with every thread it had."""
    before, made_here = set(threading.enumerate()), Site(folder)
    yield made_here
    if made_here.server:
        made_here.server.stop()
    for thread in set(threading.enumerate()) - before:
        thread.join(15)
        assert not thread.is_alive(), thread.name


class TestTls:
    """TLS on real sockets."""

    def test_served(self, site: Site) -> None:
        """A client that verifies the certificate is served, small, large, and with a body."""
        site.start(TLS)
        assert site.get().endswith(b"\r\n\r\n0")
        assert len(site.get(request=GET.replace(b" / ", b" /large "))) > 3_000_000
        body = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000
        assert site.get(request=body).endswith(b"\r\n\r\n200000")

    def test_a_stranger_is_not_trusted(self, site: Site) -> None:
        """A client that trusts another authority ends the handshake; the next one is served."""
        site.start(TLS)
        with pytest.raises(ssl.SSLCertVerificationError):
            site.get(site.trust("stranger"))
        assert site.get().endswith(b"0")

    def test_requests_that_arrive_together(self, site: Site) -> None:
        """Three in one piece: what is decrypted already is answered without waiting for the socket."""
        site.start(TLS)
        with site.plain() as raw, site.trust().wrap_socket(raw, server_hostname="localhost") as client:
            client.sendall(KEEP.replace(b"Host", b"X: " + b"y" * 5000 + b"\r\nHost") * 3)
            answer = b""
            while answer.count(b"\r\n\r\n0") < 3:
                part = client.recv(65536)
                assert part
                answer += part

    def test_a_request_that_was_decrypted_with_the_one_before(self, site: Site) -> None:
        """The first fills the reader's buffer to its end: the second waits behind the decryption, not in the socket."""
        site.start(TLS)
        filled = KEEP.replace(b"Host", b"X: " + b"y" * (io.DEFAULT_BUFFER_SIZE - len(KEEP) - 5) + b"\r\nHost")
        assert len(filled) == io.DEFAULT_BUFFER_SIZE
        with site.plain() as raw, site.trust().wrap_socket(raw, server_hostname="localhost") as client:
            client.settimeout(5)
            client.sendall(filled + KEEP)
            answer = b""
            while answer.count(b"\r\n\r\n0") < 2:
                part = client.recv(65536)
                assert part
                answer += part

    def test_silent_clients_cost_no_thread(self, site: Site) -> None:
        """Many that connect and say nothing keep nobody from being greeted."""
        site.start(TLS)
        with contextlib.ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(site.plain())
            began = time.monotonic()
            assert site.get().endswith(b"0")
            assert time.monotonic() - began < SLACK

    def test_a_dribbled_handshake_is_cut_off(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those who begin a handshake and do not go on hold their threads for one deadline."""
        monkeypatch.setattr(serving, "EXCHANGE_SECONDS", 0.3)
        site.start(TLS)
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(site.plain()).sendall(b"\x16\x03\x01\x02\x00\x01")
            began = time.monotonic()
            assert site.get().endswith(b"0")
            assert time.monotonic() - began < 0.3 + SLACK

    @pytest.mark.parametrize(
        "sent",
        [b"", b"\x16", b"\x16\x03\x01\x00\x02\xff\xff", bytes(range(256)) * 12],
        ids=["nothing", "one-byte", "no-handshake", "long"],
    )
    def test_noise(self, site: Site, sent: bytes) -> None:
        """Whoever breaks off or sends what is no handshake is dropped, and the next client is served."""
        site.start(TLS, threads=1)
        with site.plain() as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            _all(client)
        assert site.get().endswith(b"0")

    def test_plain_http_is_told(self, site: Site) -> None:
        """A client that forgot the s reads why it is not served."""
        site.start(TLS)
        answer = site.http()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.endswith(b"This port speaks HTTPS.\n")

    def test_noise_after_the_handshake(self, site: Site) -> None:
        """Bytes that do not decrypt end the connection, and nothing else."""
        site.start(TLS, threads=1)
        with site.plain() as raw:
            client = site.trust().wrap_socket(raw, server_hostname="localhost")
            client.sendall(KEEP)
            assert client.recv(65536)
            os.write(client.fileno(), b"\x17\x03\x03\x00\x20" + b"x" * 32)
            with contextlib.suppress(OSError):
                _all(client)
            client.close()
        assert site.get().endswith(b"0")

    def test_the_version(self, site: Site) -> None:
        """What is older than asked for is refused."""
        site.start(tls("min_version: TLS13"))
        old, new = site.trust(), site.trust()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            site.get(old)
        assert site.get(new).endswith(b"0")

    def test_suites_and_curve(self, site: Site) -> None:
        """A suite of TLS 1.2 that is not listed is refused, the one that is listed is used."""
        site.start(tls("cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384], curve_preferences: [CurveP384]"))
        for name, served in (("ECDHE-ECDSA-AES256-GCM-SHA384", True), ("ECDHE-ECDSA-AES128-GCM-SHA256", False)):
            context = site.trust()
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            context.set_ciphers(name)
            if served:
                assert site.get(context).endswith(b"0")
            else:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    site.get(context)

    @pytest.mark.parametrize(
        ("kind", "shown", "served"),
        [
            ("RequireAndVerifyClientCert", None, False),
            ("RequireAndVerifyClientCert", "client", True),
            ("RequireAndVerifyClientCert", "foreign", False),
            ("VerifyClientCertIfGiven", None, True),
            ("VerifyClientCertIfGiven", "client", True),
            ("VerifyClientCertIfGiven", "foreign", False),
        ],
    )
    def test_certificates_of_clients(self, site: Site, kind: str, shown: str | None, served: bool) -> None:
        """Who must show a certificate, and of which authority."""
        site.start(tls(f"client_auth_type: {kind}, client_ca_file: ca.crt"))
        context = site.trust()
        if shown:
            context.load_cert_chain(site.folder / f"{shown}.crt", site.folder / f"{shown}.key")
        answer = b""
        with contextlib.suppress(ssl.SSLError, ConnectionError):  # with TLS 1.3 the refusal comes after the handshake
            answer = site.get(context)
        assert answer.endswith(b"0") is served

    def test_a_new_certificate_is_taken_up(self, site: Site) -> None:
        """Replaced on disk, it is shown to the next client; a broken one leaves the former, and mends itself."""
        site.start(TLS)
        assert site.get().endswith(b"0")
        certificates.make(site.folder, "server", "stranger")
        site.clock.now += 2
        assert site.get(site.trust("stranger")).endswith(b"0")
        (site.folder / "server.key").write_text("broken")
        site.clock.now += 2
        assert site.get(site.trust("stranger")).endswith(b"0")
        certificates.make(site.folder, "server", "ca")
        site.clock.now += 2
        assert site.get().endswith(b"0")

    def test_tls_is_not_switched_off_on_the_way(self, site: Site) -> None:
        """A file that has lost its certificate does not make passwords travel in the clear."""
        site.start(TLS)
        site.rewrite("{}")
        assert site.get().endswith(b"0")

    @pytest.mark.parametrize("sent", [None, b"", GET], ids=["not-greeted", "silent", "answered"])
    def test_stops_in_time(self, site: Site, sent: bytes | None) -> None:
        """With a client that was not greeted, one that says nothing more, and one that was answered."""
        server = site.start(TLS)
        with site.plain() as raw:
            client = raw
            if sent is not None:
                client = site.trust().wrap_socket(raw, server_hostname="localhost")
                client.sendall(sent)
            began = time.monotonic()
            server.stop()
            assert time.monotonic() - began < 2.2
            client.close()


def basic(name: str, password: str) -> str:
    """The header of a client that shows these."""
    return "Authorization: Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


USERS = f"basic_auth_users: {{alice: {HASH}, bob: {hashed('pä:ss')}}}\n"


class TestUsers:
    """Basic authentication."""

    @pytest.mark.parametrize(
        ("header", "status"),
        [
            ("X: y", b"401"),
            (basic("alice", "secret"), b"200"),
            (basic("bob", "pä:ss"), b"200"),
            (basic("alice", "pä:ss"), b"401"),
            (basic("alice", ""), b"401"),
            (basic("alice", "secret\0"), b"401"),
            (basic("alice", "secret" + "x" * 100), b"401"),
            (basic("carol", "secret"), b"401"),
            (basic("", ""), b"401"),
            (basic("alice", "secret").replace("Basic", "basic"), b"200"),
            ("Authorization: Basic", b"401"),
            ("Authorization: Basic !!!", b"401"),
            ("Authorization: Basic YWxpY2U=", b"401"),
            ("Authorization: Basic //8=", b"401"),
            ("Authorization: Bearer secret", b"401"),
        ],
    )
    def test_who_is_let_in(self, site: Site, header: str, status: bytes) -> None:
        """One row: what a client shows, and what it gets; the same at every path."""
        site.start(USERS)
        for path in ("/", "/-/healthy", "/metrics"):
            answer = site.http(header, path=path)
            assert answer.split()[1] == status
            assert (b"WWW-Authenticate: Basic" in answer) is (status == b"401")

    def test_a_scrape_costs_no_bcrypt(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """Verified once, remembered as a digest; a wrong password is tried each time."""
        tried: list[str] = []
        real = guard_module._matches

        def matches(password: bytes, hashed: str) -> bool:
            tried.append(hashed)
            return real(password, hashed)

        monkeypatch.setattr(guard_module, "_matches", matches)
        site.start(USERS)
        for _ in range(5):
            assert site.http(basic("alice", "secret")).split()[1] == b"200"
        assert len(tried) == 1
        for _ in range(3):
            assert site.http(basic("alice", "wrong")).split()[1] == b"401"
        assert len(tried) == 4
        assert site.http(basic("nobody", "secret")).split()[1] == b"401"
        assert len(tried) == 5, "who does not exist takes as long as who does"
        assert tried[-1][:7] == HASH[:7], "at the same cost"

    def test_a_user_who_is_taken_out(self, site: Site) -> None:
        """Out of the file is out of the program, remembered or not; a broken file changes nothing."""
        site.start(USERS)
        assert site.http(basic("alice", "secret")).split()[1] == b"200"
        site.rewrite("basic_auth_users: {alice: oops}")
        assert site.http(basic("alice", "secret")).split()[1] == b"200"
        site.rewrite(f"basic_auth_users: {{alice: {hashed('new')}}}")
        assert site.http(basic("alice", "secret")).split()[1] == b"401"
        assert site.http(basic("alice", "new")).split()[1] == b"200"
        assert site.http(basic("bob", "pä:ss")).split()[1] == b"401"

    def test_headers(self, site: Site) -> None:
        """On every answer, refusals too; a header that the application sets stays its own."""
        more = "http_server_config: {headers: {X-Frame-Options: deny, X-XSS-Protection: theirs}}\n"
        site.start(USERS + more)
        refused, served = site.http(), site.http(basic("alice", "secret"))
        assert b"X-Frame-Options: deny" in refused
        assert b"X-Frame-Options: deny" in served
        assert b"X-XSS-Protection: theirs" in refused
        assert b"X-XSS-Protection: own" in served
        assert b"theirs" not in served


class TestGuard:
    """The guard without sockets."""

    def test_tries_are_bounded_and_the_known_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """While guesses keep bcrypt busy, another guess is turned away, and who was verified before gets in."""
        guard, entered, release = Guard(), threading.Semaphore(0), threading.Event()
        users = {"alice": HASH}
        known = basic("alice", "secret").removeprefix("Authorization: ")
        assert guard.accepts(known, users)

        def matches(password: bytes, hashed: str) -> bool:
            entered.release()
            release.wait(10)
            return False

        monkeypatch.setattr(guard_module, "_matches", matches)
        guess = basic("alice", "guess").removeprefix("Authorization: ")
        threads = [threading.Thread(target=guard.accepts, args=(guess, users)) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert entered.acquire(timeout=5)
        with pytest.raises(Busy):
            guard.accepts(guess, users)
        assert guard.accepts(known, users)
        release.set()
        for thread in threads:
            thread.join()
        assert not guard.accepts(guess, users)

    def test_nobody_is_let_in_by_a_hash_that_is_nobodys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever comes of the hash that is tried for an unknown user, he stays unknown."""
        monkeypatch.setattr(guard_module, "_matches", lambda password, hashed: True)
        assert not Guard().accepts(basic("carol", "x").removeprefix("Authorization: "), {"alice": HASH})

    def test_bcrypt_reads_72_bytes(self) -> None:
        """What follows them makes no difference, as for every program that verifies such hashes."""
        users = {"alice": hashed("x" * 72)}
        for password, right in (("x" * 72, True), ("x" * 100, True), ("x" * 71, False)):
            assert Guard().accepts(basic("alice", password).removeprefix("Authorization: "), users) is right

    def test_what_is_remembered_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The least used is forgotten, and verified again when it comes back."""
        monkeypatch.setattr(guard_module, "_matches", lambda password, hashed: True)
        guard, users = Guard(), {"alice": HASH}
        for number in range(3 * KEPT):
            assert guard.accepts(basic("alice", str(number)).removeprefix("Authorization: "), users)
        assert len(guard._verified) == KEPT
