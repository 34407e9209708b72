"""`--web.config.file` in the format of Prometheus's exporter-toolkit: TLS, users with bcrypt hashes, headers.

The file and its certificates are read again when they change; what is broken then keeps what was good.
"""

from __future__ import annotations

import re
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from stallwatch.logs import get_logger
from stallwatch.settings import SettingsError, Strict, load_yaml

CHECK_SECONDS = 1.0
"""How often the files are looked at, at most; only when somebody connects."""
_HASH = re.compile(r"\$2[abxy]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
_VERSIONS = {
    # OpenSSL has not spoken the two oldest for years: asked for at least those, it speaks what it can.
    "TLS10": ssl.TLSVersion.TLSv1_2,
    "TLS11": ssl.TLSVersion.TLSv1_2,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
_TLS13 = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
_CIPHERS = {
    f"TLS_{exchange}_WITH_{name}": f"{prefix}{openssl}"
    for exchange, prefix in {"ECDHE_RSA": "ECDHE-RSA-", "ECDHE_ECDSA": "ECDHE-ECDSA-", "RSA": ""}.items()
    for name, openssl in {
        "AES_128_CBC_SHA": "AES128-SHA",
        "AES_256_CBC_SHA": "AES256-SHA",
        "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
        "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
        "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
    }.items()
    if (exchange, name) != ("RSA", "CHACHA20_POLY1305_SHA256")
}
_HEADERS: dict[str, tuple[str, ...]] = {
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-Content-Type-Options": ("nosniff",),
    "X-XSS-Protection": (),
    "Strict-Transport-Security": (),
    "Content-Security-Policy": (),
}
"""Headers that may be set, and their values where not every one will do."""

ClientAuth = Literal[
    "", "NoClientCert", "RequestClientCert", "RequireAnyClientCert", "RequireClientCert", "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
]  # fmt: skip
Version = Literal["TLS10", "TLS11", "TLS12", "TLS13"]


def _bcrypt_hash(text: str) -> str:
    if not _HASH.fullmatch(text):
        raise ValueError("is no bcrypt hash")
    return text


def _cipher(text: str) -> str:
    if text not in _CIPHERS and text not in _TLS13:
        raise ValueError("is no name of a cipher suite")
    return text


def _headers(given: dict[str, str]) -> dict[str, str]:
    for name, value in given.items():
        if name not in _HEADERS:
            raise ValueError(f"{name!r} cannot be set; only {', '.join(_HEADERS)}")
        if _HEADERS[name] and value not in _HEADERS[name]:
            raise ValueError(f"{name} must be one of {', '.join(_HEADERS[name])}")
        if not value.isprintable() or not value.isascii():
            raise ValueError(f"{name} holds characters that no header can carry")
    return given


class TlsSettings(Strict):
    """`tls_server_config`; file names are relative to the file."""

    cert_file: str = ""
    key_file: str = ""
    client_auth_type: ClientAuth = ""
    client_ca_file: str = ""
    min_version: Version = "TLS12"
    max_version: Version = "TLS13"
    cipher_suites: list[Annotated[str, AfterValidator(_cipher)]] = []
    prefer_server_cipher_suites: bool = True
    curve_preferences: list[Literal["CurveP256", "CurveP384", "CurveP521", "X25519"]] = []


class HttpSettings(Strict):
    """`http_server_config`. HTTP/2 is never spoken, allowed or not."""

    http2: bool = True
    headers: Annotated[dict[str, str], AfterValidator(_headers)] | None = None


class WebSettings(Strict):
    """The whole file."""

    tls_server_config: TlsSettings | None = None
    http_server_config: HttpSettings | None = None
    basic_auth_users: dict[Annotated[str, Field(min_length=1)], Annotated[str, AfterValidator(_bcrypt_hash)]] | None = (
        None
    )


@dataclass(frozen=True)
class Web:
    """What the file says, ready to be used; the files that it came from, to see when they change."""

    context: ssl.SSLContext | None
    users: dict[str, str]
    headers: dict[str, str]
    files: tuple[Path, ...]


class WebConfig:
    """The file of one program while it serves."""

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Read the file and its certificates. Raises `SettingsError`: one line that names the path."""
        self.path = path
        self._monotonic, self._lock = monotonic, threading.Lock()
        self._web = _load(path)
        self._seen, self._looked_at = _look(self._web.files), monotonic()
        self._log = get_logger("web")

    @property
    def tls(self) -> bool:
        """Whether the program speaks TLS; that does not change while it runs."""
        return self._web.context is not None

    def current(self) -> Web:
        """What holds now. A change that cannot be used is said once, and what held before goes on."""
        with self._lock:
            now = self._monotonic()
            if now - self._looked_at < CHECK_SECONDS:
                return self._web
            self._looked_at = now
            seen = _look(self._web.files)
            if seen == self._seen:
                return self._web
            self._seen = seen
            try:
                web = _load(self.path)
                if (web.context is None) is self.tls:
                    raise SettingsError(f"{self.path}: TLS is switched on or off only by a restart")
            except SettingsError as error:
                self._log.error("web configuration not usable, the former one stays", error=str(error))
                return self._web
            self._web, self._seen = web, _look(web.files)
            self._log.info("web configuration read again", file=str(self.path))
            return web


def _look(files: tuple[Path, ...]) -> list[object]:
    found: list[object] = []
    for file in files:
        try:
            known = file.stat()
            found.append((known.st_mtime_ns, known.st_size, known.st_ino))
        except OSError:
            found.append(None)
    return found


def _load(path: Path) -> Web:
    settings = load_yaml(path, WebSettings)
    users, http = settings.basic_auth_users or {}, settings.http_server_config or HttpSettings()
    if users and find_spec("bcrypt") is None:
        raise SettingsError(f"{path}: basic_auth_users: needs the extra web-auth (pip install 'stallwatch[web-auth]')")
    tls = settings.tls_server_config or TlsSettings()
    names = [name for name in (tls.cert_file, tls.key_file, tls.client_ca_file) if name]
    files = (path, *(path.parent / name for name in names))
    context = _context(path, tls) if names or tls.client_auth_type else None
    return Web(context, dict(users), dict(http.headers or {}), files)


def _context(path: Path, tls: TlsSettings) -> ssl.SSLContext:
    where = f"{path}: tls_server_config"
    for key in ("cert_file", "key_file"):
        if not getattr(tls, key):
            raise SettingsError(f"{where}.{key}: is missing")
    if tls.client_auth_type in ("RequireAnyClientCert", "RequireClientCert"):
        raise SettingsError(f"{where}.client_auth_type: unverified certificates prove nothing and are not supported")
    verify = {"VerifyClientCertIfGiven": ssl.CERT_OPTIONAL, "RequireAndVerifyClientCert": ssl.CERT_REQUIRED}
    mode = verify.get(tls.client_auth_type, ssl.CERT_NONE)
    if tls.client_ca_file and tls.client_auth_type in ("", "NoClientCert"):
        raise SettingsError(f"{where}.client_ca_file: needs a client_auth_type that verifies")
    if len(tls.curve_preferences) > 1:
        raise SettingsError(f"{where}.curve_preferences: more than one is not supported; leave it out for the usual")
    if _VERSIONS[tls.min_version] > _VERSIONS[tls.max_version] or tls.max_version in ("TLS10", "TLS11"):
        raise SettingsError(f"{where}.max_version: must be at least TLS12 and min_version")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    key = "cert_file"
    try:
        context.load_cert_chain(path.parent / tls.cert_file, path.parent / tls.key_file, _no_password)
        key = "client_ca_file"
        if mode is not ssl.CERT_NONE and tls.client_ca_file:
            context.load_verify_locations(path.parent / tls.client_ca_file)
        elif mode is not ssl.CERT_NONE:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    except (OSError, ValueError) as error:  # errors of TLS are OSErrors, too
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        also = " and key_file" if key == "cert_file" else ""
        raise SettingsError(f"{where}.{key}{also}: cannot be used: {reason}") from error
    context.verify_mode = mode
    _choose(context, tls, where)
    return context


def _choose(context: ssl.SSLContext, tls: TlsSettings, where: str) -> None:
    """Ciphers and curves. Suites of TLS 1.3 are always on; naming only those leaves nothing for 1.2."""
    if tls.curve_preferences:
        curve = tls.curve_preferences[0]
        try:
            context.set_ecdh_curve(_CURVES[curve])
        except (ssl.SSLError, ValueError) as error:  # X25519 on Debian 12's own Python
            raise SettingsError(
                f"{where}.curve_preferences: {curve} is not to be had from this Python; leave it out for the usual"
            ) from error
    context.options |= ssl.OP_NO_RENEGOTIATION
    if not tls.prefer_server_cipher_suites:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    older = [_CIPHERS[name] for name in tls.cipher_suites if name in _CIPHERS]
    if older:
        context.set_ciphers(":".join(older))
    elif tls.cipher_suites:
        if tls.max_version == "TLS12":
            raise SettingsError(f"{where}.cipher_suites: none of them belongs to TLS12")
        context.minimum_version = ssl.TLSVersion.TLSv1_3


def _no_password() -> str:
    raise ValueError("the key is encrypted")
