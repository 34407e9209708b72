"""How the exporters are reached where they speak TLS and ask for users (their `--web.config.file`)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from stallwatch.deadline import tls_context
from stallwatch.settings import SettingsError, Strict, read_secret


class AccessSettings(Strict):
    """The authority that signed their certificates, if it is not one of the system's; a user who may read."""

    ca_file: str | None = None
    username: Annotated[str, Field(min_length=1, pattern=r"^[^:]+$")] | None = None
    password_file: str | None = None

    @model_validator(mode="after")
    def _both(self) -> AccessSettings:
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and password_file belong together")
        return self


@dataclass(frozen=True)
class Access:
    """The same with the password read. Never part of any text."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: str | None = None


OPEN = Access()
"""Exporters that ask for nothing."""


def resolve(path: Path, key: str, settings: AccessSettings) -> Access:
    """Read what the files hold. Raises `SettingsError`: one line that names the path and the key."""
    headers = {}
    where = f"{path}: {key}.password_file"
    try:
        if settings.username is not None and settings.password_file is not None:
            pair = f"{settings.username}:{read_secret(settings.password_file)}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        where = f"{path}: {key}.ca_file"
        if settings.ca_file is not None:
            tls_context(settings.ca_file)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error
    except OSError as error:  # errors of TLS, too
        raise SettingsError(f"{where}: {settings.ca_file}: cannot be used: {error.strerror}") from error
    return Access(headers, settings.ca_file)
