"""With which credentials the kubernetes driver connects, read anew for every connection, and over which sockets."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

from remediator.drivers import DriverFailed, FailureReason
from remediator.drivers.command import first_line
from stallwatch.deadline import DeadlineAdapter, tls_context

if TYPE_CHECKING:
    from kubernetes.client import Configuration

TOKEN_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/token"
CA_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"


@dataclass(frozen=True, slots=True)
class Access:
    """Where credentials come from: a kubeconfig file and a context in it, or the service account of our own pod."""

    kubeconfig: str | None = None
    context: str | None = None


def prepare(access: Access) -> tuple[Configuration, DeadlineAdapter, str]:
    """Read the credentials; also gives the API's host and port. Raises `DriverFailed`.

    No text of an unknown error is shown: it may hold a part of a file, and so a secret.
    """
    from kubernetes.client import Configuration  # noqa: PLC0415
    from kubernetes.config import ConfigException  # noqa: PLC0415

    configuration = Configuration()
    where = f"kubeconfig {access.kubeconfig}" if access.kubeconfig else "service account"
    try:
        if access.kubeconfig is None:
            _from_service_account(configuration)
        else:
            _from_file(configuration, Path(access.kubeconfig), access.context)
        configuration.proxy = None
        configuration.refresh_api_key_hook = None  # the file has just been read
        configuration.api_key = {kind: secret.strip() for kind, secret in configuration.api_key.items()}
        host = urlsplit(configuration.host).netloc.rpartition("@")[2]
        return configuration, _adapter(configuration), host
    except ConfigException as error:
        raise DriverFailed("error", f"{where}: {first_line(str(error).encode())}") from None
    except DriverFailed:
        raise
    except OSError as error:
        reason: FailureReason = "no_permission" if isinstance(error, PermissionError) else "error"
        what = f"{where}: {error.filename}" if error.filename else f"{where}: a file that it names"
        raise DriverFailed(reason, f"{what} cannot be read: {error.strerror or type(error).__name__}") from None
    except Exception as error:
        raise DriverFailed("error", f"{where} cannot be understood ({type(error).__name__})") from None


def _from_service_account(configuration: Configuration) -> None:
    from kubernetes.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415

    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise DriverFailed("error", "this is not a pod of a cluster: set kubeconfig")
    loader = InClusterConfigLoader(TOKEN_FILE, CA_FILE, try_refresh_token=False)  # type: ignore[no-untyped-call]
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call]


def _from_file(configuration: Configuration, path: Path, context: str | None) -> None:
    """Refuses what would run a program or go through another server: neither has a deadline."""
    from kubernetes.config.kube_config import KubeConfigLoader  # noqa: PLC0415

    document = yaml.safe_load(path.read_bytes())
    loader = KubeConfigLoader(document, context, config_base_path=str(path.parent))  # type: ignore[no-untyped-call]
    chosen = loader.current_context["context"]
    for key in ("exec", "auth-provider"):
        if key in _named(document, "user", chosen):
            what = f"user {chosen['user']} gets its credentials by {key}, which has no deadline"
            raise DriverFailed("error", f"kubeconfig {path}: {what}: use a token file or a client certificate")
    if "proxy-url" in _named(document, "cluster", chosen):
        raise DriverFailed("error", f"kubeconfig {path}: cluster {chosen['cluster']} has a proxy-url: not supported")
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call]


def _named(document: Any, what: str, chosen: dict[str, Any]) -> dict[str, Any]:
    found = [entry[what] for entry in document.get(f"{what}s") or [] if entry["name"] == chosen.get(what)]
    return (found[0] if found else None) or {}


def _adapter(configuration: Configuration) -> DeadlineAdapter:
    context = tls_context(None)
    if configuration.ssl_ca_cert or configuration.cert_file or not configuration.verify_ssl:
        kind = context.sslsocket_class  # whose every operation ends at the deadline
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        context.sslsocket_class = kind
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    adapter = DeadlineAdapter(context)
    named = {"server_hostname": configuration.tls_server_name} if configuration.tls_server_name else {}
    adapter.init_poolmanager(1, 1, retries=False, **named)
    return adapter
