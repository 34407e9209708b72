"""Certificates of the tests' own, made by the real openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.realparts import need


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


def make(folder: Path, name: str, signer: str | None = None) -> tuple[Path, Path]:
    """NAME.crt and NAME.key for localhost, signed by SIGNER's or, without one, by its own key."""
    need("openssl", None if shutil.which("openssl") else "the program openssl is not installed")
    certificate, key, request = (folder / f"{name}.{ending}" for ending in ("crt", "key", "csr"))
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    if signer is None:
        _openssl("req", "-x509", *kind, *names, "-keyout", key, "-out", certificate, "-days", "2")
    else:
        _openssl("req", *kind, *names, "-keyout", key, "-out", request)
        by = ["-CA", folder / f"{signer}.crt", "-CAkey", folder / f"{signer}.key", "-CAcreateserial"]
        _openssl("x509", "-req", "-in", request, *by, "-out", certificate, "-days", "2", "-copy_extensions", "copy")
    return certificate, key
