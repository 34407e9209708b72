"""The kubernetes driver and an API that fails, hangs or refuses; its credentials, and what is never shown."""

from __future__ import annotations

import base64
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remediator.drivers import DriverFailed
from remediator.drivers import kubernetes as driver_module
from remediator.drivers import kubernetes_access as access_module
from remediator.drivers.kubernetes import KubernetesDriver
from remediator.drivers.kubernetes_access import Access
from tests import realparts
from tests.remediator.drivers.contract import eventually
from tests.remediator.drivers.kubernetes_api import TOKEN, FakeApi, serving
from tests.remediator.drivers.kubernetes_cluster import Cluster
from tests.remediator.drivers.kubernetes_stage import KubernetesStage, write_kubeconfig

SLACK_SECONDS = 2.0
"""Of a noisy machine."""


def fails(driver: KubernetesDriver, seconds: float = 10.0) -> tuple[str, str]:
    """Reason and text with which a restart fails."""
    with pytest.raises(DriverFailed) as caught:
        driver.restart(seconds)
    assert caught.value.detail.isprintable()
    assert TOKEN not in caught.value.detail
    return caught.value.reason, caught.value.detail


# An API that fails.


@pytest.mark.parametrize(
    ("fault", "reason", "detail"),
    [
        ("401", "no_permission", "401 fault 401"),
        ("403", "no_permission", "403 fault 403"),
        ("404", "not_found", "404 fault 404"),
        ("422", "error", "422 fault 422"),
        ("429", "unavailable", "429 fault 429"),
        ("500", "unavailable", "500 fault 500"),
        ("504", "unavailable", "504 fault 504"),
        ("html-404", "error", "404 Not Found"),  # a wrong address, rather than a pod that is gone
        ("redirect", "error", "302 Found"),  # not followed
        ("html", "error", "the request or its answer is not valid"),
        ("cut", "unavailable", "no answer of the API at HOST: RemoteDisconnected"),
    ],
)
def test_failures_of_the_api_are_told_apart(
    kubernetes_stage: KubernetesStage, fault: str, reason: str, detail: str
) -> None:
    """Each has its reason and one line; a failure is no proof that nothing runs, except of a pod that is not there."""
    stage = kubernetes_stage
    name = stage.cluster.pod()["metadata"]["name"]
    stage.api.faults = {"get": fault}  # a list is a GET, too
    host = stage.api.url.partition("//")[2]
    found = fails(stage.make())
    assert found[0] == reason
    assert found[1].startswith(f"list pods app=vllm: {detail.replace('HOST', host)}")
    described = stage.driver.describe()
    assert (described.identity, described.running) == (None, False if reason == "not_found" else None)
    assert described.detail == found[1]
    assert stage.cluster.pod()["metadata"]["name"] == name


def test_an_api_that_is_not_there(kubernetes_stage: KubernetesStage, tmp_path: Path) -> None:
    """Nobody listens on its port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        kubernetes_stage.kubeconfig = write_kubeconfig(tmp_path / "other", f"http://127.0.0.1:{port}")
        reason, detail = fails(kubernetes_stage.driver)
    assert (reason, detail) == (
        "unavailable", f"list pods app=vllm: no answer of the API at 127.0.0.1:{port}: Connection refused"
    )  # fmt: skip


@pytest.mark.parametrize("verb", ["get", "delete"])
@pytest.mark.parametrize("fault", ["silent", "dribbled-head"])
def test_the_deadline_is_a_total_one(kubernetes_stage: KubernetesStage, verb: str, fault: str) -> None:
    """Against silence and single bytes, whichever call meets them; a driver that waits for ever blocks its group."""
    kubernetes_stage.api.faults = {verb: fault}
    began = time.monotonic()
    reason, detail = fails(kubernetes_stage.driver, 0.6)
    assert time.monotonic() - began < 0.6 + SLACK_SECONDS
    assert reason == "deadline"
    what = "list pods app=vllm" if verb == "get" else "delete pod vllm-"
    assert detail.startswith(what)
    assert detail.endswith("gave no full answer within 0.6 s")


def test_a_dribbled_list_ends_at_the_deadline(kubernetes_stage: KubernetesStage) -> None:
    """Its head is complete, its body never."""
    kubernetes_stage.api.faults = {"get": "dribble"}
    began = time.monotonic()
    assert fails(kubernetes_stage.driver, 0.6)[0] == "deadline"
    assert time.monotonic() - began < 0.6 + SLACK_SECONDS


def test_a_deletion_is_accepted_with_the_head_of_its_answer(kubernetes_stage: KubernetesStage) -> None:
    """What the body says of the pod is not waited for."""
    kubernetes_stage.api.faults = {"delete": "dribble"}
    kubernetes_stage.driver.restart(5.0)


def test_a_description_has_a_deadline_of_its_own(
    kubernetes_stage: KubernetesStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is the protocol's ten seconds; shortened here."""
    assert driver_module.DESCRIBE_SECONDS < 10
    monkeypatch.setattr(driver_module, "DESCRIBE_SECONDS", 0.5)
    kubernetes_stage.api.faults = {"get": "silent"}
    began = time.monotonic()
    found = kubernetes_stage.driver.describe()
    assert time.monotonic() - began < 0.5 + SLACK_SECONDS
    assert (found.identity, found.running) == (None, None)
    assert found.detail.endswith("gave no full answer within 0.5 s")


@pytest.mark.parametrize("fault", ["cut", "500", "429"])
def test_no_call_is_made_twice(kubernetes_stage: KubernetesStage, fault: str) -> None:
    """Whether to try again is the attempt's to decide, after a look at the identity."""
    seen: list[str] = []

    class Faults(dict[str, str]):
        def get(self, verb: str, default: Any = None) -> Any:
            seen.append(verb)
            return super().get(verb, default)

    kubernetes_stage.api.faults = Faults({"delete": fault})
    assert fails(kubernetes_stage.driver)[0] == "unavailable"
    assert seen.count("delete") == 1


def test_the_environments_proxy_is_not_used(kubernetes_stage: KubernetesStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would see the token, or not let the call through."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "socks5://127.0.0.1:1")
    assert kubernetes_stage.driver.describe().identity


# Credentials.


def test_a_wrong_token_is_no_permission(kubernetes_stage: KubernetesStage) -> None:
    """As the API says it."""
    kubernetes_stage.api.token = "another"
    assert fails(kubernetes_stage.driver) == ("no_permission", "list pods app=vllm: 401 Unauthorized")


def test_a_token_file_is_read_again(kubernetes_stage: KubernetesStage, tmp_path: Path) -> None:
    """Tokens are replaced while the program runs; one driver lives for weeks."""
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    write_kubeconfig(kubernetes_stage.kubeconfig, kubernetes_stage.api.url, {"tokenFile": "token"})
    driver = kubernetes_stage.driver
    assert driver.describe().identity
    kubernetes_stage.api.token = "token-of-the-next-hour"
    assert driver.describe().identity is None
    file.write_text("token-of-the-next-hour")
    assert driver.describe().identity


@pytest.mark.parametrize(
    ("content", "context", "reason", "detail"),
    [
        (None, None, "error", "kubeconfig FILE: FILE cannot be read: No such file or directory"),
        ("", None, "error", "kubeconfig FILE: Invalid kube-config. Expected config_dict to not be None."),
        ("token: [hunter2", None, "error", "kubeconfig FILE cannot be understood (ParserError)"),
        ("hunter2", None, "error",
         "kubeconfig FILE: Invalid kube-config file. Expected key current-context in kube-config"),
        ("{}", None, "error", "kubeconfig FILE: Invalid kube-config file. Expected key current-context in kube-config"),
        ("GOOD", "prod", "error",
         "kubeconfig FILE: Invalid kube-config file. Expected object with name prod in kube-config/contexts list"),
    ],
)  # fmt: skip
def test_a_kubeconfig_that_cannot_be_used(
    kubernetes_stage: KubernetesStage, content: str | None, context: str | None, reason: str, detail: str
) -> None:
    """The file may hold secrets: what of it is wrong is said without its content."""
    file = kubernetes_stage.kubeconfig
    if content is None:
        file.unlink()
    elif content != "GOOD":
        file.write_text(content)
    driver = kubernetes_stage.make(**({"context": context} if context else {}))
    found = driver.describe()
    assert (found.identity, found.running, found.detail) == (None, None, detail.replace("FILE", str(file)))
    assert fails(driver) == (reason, detail.replace("FILE", str(file)))


@pytest.mark.parametrize("key", ["exec", "auth-provider"])
def test_credentials_of_a_program_are_refused(kubernetes_stage: KubernetesStage, key: str) -> None:
    """Nothing bounds how long it runs; it is not started."""
    mark = kubernetes_stage.kubeconfig.with_name("mark")
    user = {key: {"command": "touch", "args": [str(mark)], "name": "gcp", "config": {"cmd-path": f"touch {mark}"}}}
    write_kubeconfig(kubernetes_stage.kubeconfig, kubernetes_stage.api.url, user)
    reason, detail = fails(kubernetes_stage.driver)
    assert reason == "error"
    assert detail.endswith(
        f"user u gets its credentials by {key}, which has no deadline: use a token file or a client certificate"
    )
    assert not mark.exists()


def test_a_proxy_of_the_kubeconfig_is_refused(kubernetes_stage: KubernetesStage) -> None:
    """Rather than gone around in silence."""
    proxy = {"proxy-url": "http://127.0.0.1:1"}
    write_kubeconfig(kubernetes_stage.kubeconfig, kubernetes_stage.api.url, **proxy)
    assert fails(kubernetes_stage.driver)[1].endswith("cluster c has a proxy-url: not supported")


@pytest.mark.parametrize("url", ["https://[::1", "127.0.0.1:1", "gopher://127.0.0.1:1"])
def test_an_address_that_is_none(kubernetes_stage: KubernetesStage, url: str) -> None:
    """A description never raises, whatever the file holds."""
    write_kubeconfig(kubernetes_stage.kubeconfig, url)
    found = kubernetes_stage.driver.describe()
    assert (found.identity, found.running) == (None, None)
    assert found.detail


def test_a_token_that_no_header_can_carry_is_not_shown(kubernetes_stage: KubernetesStage) -> None:
    """The library's own error would show it."""
    write_kubeconfig(kubernetes_stage.kubeconfig, kubernetes_stage.api.url, {"token": f"{TOKEN}\n{TOKEN}"})
    assert fails(kubernetes_stage.driver) == (
        "error",
        "list pods app=vllm: the request or its answer is not valid (ValueError)",
    )


# In a pod of the cluster: TLS and the service account.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of 127.0.0.1 with its key in one file, and alone beside it."""
    realparts.need("openssl", None if shutil.which("openssl") else "not installed")
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", path, "-out", path.with_suffix(".crt")], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + path.with_suffix(".crt").read_bytes())
    return path


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    """The API's side of TLS; a test may have it ask for client certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.load_verify_locations(certificate.with_suffix(".crt"))
    return context


@pytest.fixture
def in_pod(
    tmp_path: Path, certificate: Path, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KubernetesStage]:
    """The API over TLS, the environment and the files that a pod finds."""
    cluster = Cluster(start_seconds=0.0)
    cluster.deployment()
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text(TOKEN + "\n")
    authority.write_bytes(certificate.with_suffix(".crt").read_bytes())
    monkeypatch.setattr(access_module, "TOKEN_FILE", str(token))
    monkeypatch.setattr(access_module, "CA_FILE", str(authority))
    with serving(FakeApi(cluster), tls) as api:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", api.url.rpartition(":")[2])
        stage = KubernetesStage(api, token)
        stage.make(kubeconfig=None)  # loads the client
        assert eventually(lambda: stage.cluster.pod()["status"]["phase"] == "Running")
        yield stage


def in_cluster(stage: KubernetesStage) -> KubernetesDriver:
    """A driver without a kubeconfig."""
    return stage.make(kubeconfig=None)


def test_the_service_account_of_the_pod(in_pod: KubernetesStage) -> None:
    """Nothing but namespace and selector is configured."""
    driver = in_cluster(in_pod)
    assert driver.access == Access()
    before = driver.describe().identity
    assert before
    driver.restart(10.0)
    assert eventually(lambda: driver.describe().identity not in (None, before))


def test_a_rotated_service_account_token_is_used_at_once(in_pod: KubernetesStage) -> None:
    """The kubelet replaces it about every hour, and the old one is refused sooner or later."""
    driver = in_cluster(in_pod)
    assert driver.describe().identity
    in_pod.api.token = "rotated"
    in_pod.kubeconfig.write_text("rotated")
    assert driver.describe().identity


def test_outside_of_a_pod_a_kubeconfig_is_asked_for(
    kubernetes_stage: KubernetesStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert in_cluster(kubernetes_stage).describe().detail == "this is not a pod of a cluster: set kubeconfig"


def test_a_token_that_may_not_be_read(in_pod: KubernetesStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder instead of a file stands for it: root may read every file."""
    in_pod.kubeconfig.unlink()
    in_pod.kubeconfig.mkdir()
    assert in_cluster(in_pod).describe().detail == "service account: Service token file does not exist."


def test_another_authority_is_not_trusted(in_pod: KubernetesStage, tmp_path: Path) -> None:
    """No token is sent to a server that cannot prove who it is."""
    in_pod.kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", in_pod.api.url)
    reason, detail = fails(in_pod.driver)
    assert reason == "unavailable"
    assert "CERTIFICATE_VERIFY_FAILED" in detail
    assert in_pod.api.asked == []


def test_authority_and_client_certificate_of_a_kubeconfig(
    in_pod: KubernetesStage, tmp_path: Path, certificate: Path, tls: ssl.SSLContext
) -> None:
    """Written into the file, as kubeadm and k3s do it. The API wants both here: the certificate and the token."""
    tls.verify_mode = ssl.CERT_REQUIRED
    assert in_cluster(in_pod).describe().identity is None
    pem = base64.b64encode(certificate.read_bytes()).decode()
    authority = base64.b64encode(certificate.with_suffix(".crt").read_bytes()).decode()
    user = {"client-certificate-data": pem, "client-key-data": pem, "token": TOKEN}
    url, data = in_pod.api.url, {"certificate-authority-data": authority}
    in_pod.kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", url, user, **data)
    assert in_pod.driver.describe().identity


def test_a_kubeconfig_of_another_place_is_not_trusted_by_name(
    in_pod: KubernetesStage, tmp_path: Path, certificate: Path
) -> None:
    """The certificate is of 127.0.0.1; `tls-server-name` says another."""
    authority = str(certificate.with_suffix(".crt"))
    named = {"certificate-authority": authority, "tls-server-name": "api.example.com"}
    in_pod.kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", in_pod.api.url, **named)
    assert fails(in_pod.driver)[0] == "unavailable"
    in_pod.kubeconfig = write_kubeconfig(
        tmp_path / "kubeconfig", in_pod.api.url, **{"certificate-authority": authority}
    )
    assert in_pod.driver.describe().identity


@pytest.mark.parametrize("fault", ["silent", "dribbled-head"])
def test_tls_has_the_same_deadline(in_pod: KubernetesStage, fault: str) -> None:
    """Every read under it ends with the deadline, too."""
    in_pod.api.faults = {"*": fault}
    began = time.monotonic()
    assert fails(in_cluster(in_pod), 0.8)[0] == "deadline"
    assert time.monotonic() - began < 0.8 + SLACK_SECONDS


def test_the_namespace_is_the_configured_one(kubernetes_stage: KubernetesStage) -> None:
    """The one of the kubeconfig's context, which holds no pod, does not count."""
    assert kubernetes_stage.driver.describe().identity
