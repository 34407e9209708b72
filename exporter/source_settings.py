"""Where lists of targets come from, as the configuration names it: files, servers that answer with them, a cluster."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from stallwatch.settings import Seconds, SettingsError, Strict, Url, check_url


def _pattern(text: str) -> str:
    if not re.fullmatch(r"[^*]*(\*[^/]*)?\.(json|yml|yaml|JSON|YML|YAML)", text):
        raise ValueError("must end with .json, .yml or .yaml, with * only in its last part")
    return text


def _list_url(text: str) -> str:
    try:
        check_url(text.partition("?")[0])
    except SettingsError as error:
        raise ValueError(str(error).replace("api_key_file", "bearer_token_file")) from error
    if "#" in text or not text.isprintable() or " " in text:
        raise ValueError("must be an http:// or https:// address")
    return text


class FileSettings(Strict):
    """Files of targets, relative to the configuration; `*` stands in the last part only, as in Prometheus."""

    files: Annotated[list[Annotated[str, AfterValidator(_pattern)]], Field(min_length=1)]
    refresh_interval_seconds: Seconds = 300.0


class HttpSettings(Strict):
    """A server that answers with targets as JSON. The files are read again at each refresh."""

    url: Annotated[str, AfterValidator(_list_url)]
    refresh_interval_seconds: Seconds = 60.0
    bearer_token_file: str | None = None
    ca_file: str | None = None


class NamespaceSettings(Strict):
    """The namespaces that are looked into; no other one is."""

    names: Annotated[list[Annotated[str, Field(pattern=r"^[a-z0-9][-a-z0-9]{0,62}$")]], Field(min_length=1)]


class SelectorSettings(Strict):
    """Which pods: by their labels, as kubectl takes it."""

    role: Literal["pod"] = "pod"
    label: Annotated[str, Field(min_length=1)]


class KubernetesSettings(Strict):
    """Pods of a cluster. Left out, address and credentials are those of the service account of our own pod."""

    role: Literal["pod"]
    namespaces: NamespaceSettings
    selectors: Annotated[list[SelectorSettings], Field(min_length=1, max_length=1)]
    api_server: Url | None = None
    bearer_token_file: str | None = None
    ca_file: str | None = None
    refresh_interval_seconds: Seconds = 15.0

    @model_validator(mode="after")
    def _together(self) -> KubernetesSettings:
        if self.api_server is not None and self.bearer_token_file is None:
            raise ValueError("api_server needs a bearer_token_file")
        return self
