"""An HTTP server that answers as the Kubernetes API documents it, over a `Cluster`; rights and faults as a test sets.

No real API server can be had on the machines of this project: no packaged one exists for their system. What this one
says is held against the official client's own models and against the published shapes, see docs/drivers/kubernetes.md.
"""

from __future__ import annotations

import contextlib
import json
import re
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.remediator.drivers.kubernetes_cluster import NAMESPACE, Cluster, Object

TOKEN = "token-of-the-service-account"
WHO = f"system:serviceaccount:{NAMESPACE}:stallwatch-remediator"
PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[a-z.]+)/v1)/namespaces/(?P<space>[^/]+)/(?P<plural>[a-z]+)(/(?P<name>[^/]+))?"
)
VERBS = {"GET": "get", "DELETE": "delete", "PATCH": "patch"}
PATCH_TYPE = "application/strategic-merge-patch+json"
Right = tuple[str, str, str]
"""Verb, API group, resource."""


class Refused(Exception):
    """An answer that is a failure, as a `Status` object."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self.status |= {"message": message, "reason": reason, "code": code}


@dataclass
class FakeApi:
    """The API of one cluster. `asked` has the right that each request needed, in order."""

    cluster: Cluster
    token: str = TOKEN
    rights: set[Right] | None = None
    """What the caller may do; None is everything."""
    faults: dict[str, str] = field(default_factory=dict)
    """Verb to silent, dribble, cut, html or a status code."""
    asked: list[Right] = field(default_factory=list)
    bodies: list[Object] = field(default_factory=list)
    before_change: Any = None
    """Called with the cluster before a delete or patch is carried out: what somebody else does in between."""
    url: str = ""
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> Object:
        """The object that answers a request. Raises `Refused`."""
        parts = urlsplit(target)
        match = PATH.fullmatch(parts.path)
        if match is None or method not in VERBS:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        group, plural, name = match["group"] or "", match["plural"], match["name"]
        verb = "list" if name is None else VERBS[method]
        self.asked.append((verb, group, plural))
        self._authorise(headers.get("Authorization") or "", (verb, group, plural), match["space"])
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        with self.lock:
            if self.before_change is not None and verb in ("delete", "patch"):
                self.before_change(self.cluster)
            self.cluster.settle()
            if name is None:
                return self._list(plural, match["space"], query)
            thing = self.cluster.objects.get((plural, name)) if match["space"] == NAMESPACE else None
            if thing is None:
                full = f"{plural}.{group}" if group else plural
                raise Refused(404, "NotFound", f'{full} "{name}" not found')
            if verb != "get":
                self.bodies.append(json.loads(body))
            if verb == "delete":
                self._delete(thing, json.loads(body))
            if verb == "patch":
                self._patch(thing, json.loads(body), headers.get("Content-Type"))
            shown: Object = json.loads(json.dumps(thing))
            self.cluster.settle()
            return shown

    def _authorise(self, authorization: str, right: Right, space: str) -> None:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or token != self.token:
            raise Refused(401, "Unauthorized", "Unauthorized")
        if self.rights is not None and (right not in self.rights or space != NAMESPACE):
            verb, group, plural = right
            what = f'cannot {verb} resource "{plural}" in API group "{group}" in the namespace "{space}"'
            raise Refused(403, "Forbidden", f'{plural} is forbidden: User "{WHO}" {what}')

    def _list(self, plural: str, space: str, query: dict[str, str]) -> Object:
        fits = selector(query.get("labelSelector", ""))
        found = self.cluster.all(plural) if space == NAMESPACE else []
        found = [thing for thing in found if fits(thing["metadata"].get("labels", {}))]
        limit = int(query.get("limit", "0")) or len(found)
        metadata = {"resourceVersion": "1"} | ({"continue": "more"} if len(found) > limit else {})
        # As the API does: the items of a list say neither their kind nor their version.
        items = [{k: v for k, v in thing.items() if k not in ("kind", "apiVersion")} for thing in found[:limit]]
        return {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": json.loads(json.dumps(items))}

    def _delete(self, pod: Object, options: Object) -> None:
        wanted, uid = options.get("preconditions", {}).get("uid"), pod["metadata"]["uid"]
        if wanted not in (None, uid):
            what = f'Operation cannot be fulfilled on Pod "{pod["metadata"]["name"]}"'
            raise Refused(
                409, "Conflict", f"{what}: the UID in the precondition ({wanted}) is not the record's ({uid})"
            )
        self.cluster.delete_pod(pod, options.get("gracePeriodSeconds"))

    def _patch(self, thing: Object, patch: Object, content_type: str | None) -> None:
        if content_type != PATCH_TYPE:
            raise Refused(
                415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content_type}"
            )
        for key in ("uid", "resourceVersion"):
            if patch.get("metadata", {}).get(key, thing["metadata"][key]) != thing["metadata"][key]:
                name = thing["metadata"]["name"]
                raise Refused(
                    409, "Conflict", f'Operation cannot be fulfilled on "{name}": the object has been modified'
                )
        merge(thing, patch)
        self.cluster.touch(thing)


def merge(thing: Object, patch: Object) -> None:
    """Mappings are merged, null removes; lists do not occur in what the driver sends."""
    for key, value in patch.items():
        if value is None:
            thing.pop(key, None)
        elif isinstance(value, dict):
            merge(thing.setdefault(key, {}), value)
        else:
            assert not isinstance(value, list)
            thing[key] = value


def selector(text: str) -> Any:
    """A predicate on labels: equality, sets, presence and absence."""
    tests = []
    for part in filter(None, (piece.strip() for piece in re.split(r",(?![^(]*\))", text))):
        if match := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", part):
            key, values = match[1], {value.strip() for value in match[3].split(",")}
            tests.append((key, values, match[2] == "in"))
        elif match := re.fullmatch(r"([\w./-]+)\s*(==|=|!=)\s*([\w.-]*)", part):
            tests.append((match[1], {match[3]}, match[2] != "!="))
        elif match := re.fullmatch(r"(!?)([\w./-]+)", part):
            tests.append((match[2], None, not match[1]))
        else:
            raise Refused(400, "BadRequest", f"unable to parse requirement: {part}")

    def fits(labels: dict[str, str]) -> bool:
        return all(
            (key in labels) == wanted if values is None else (labels.get(key) in values) == wanted
            for key, values, wanted in tests
        )

    return fits


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: FakeApi

    def log_message(self, *arguments: Any) -> None:
        """Silent."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        verb = VERBS.get(self.command, "")
        fault = self.api.faults.get(verb) or self.api.faults.get("*")
        if fault == "silent":
            self.api.ended.wait()
        elif fault == "dribble":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{")
            while not self.api.ended.wait(0.05):
                self.wfile.write(b" ")
        elif fault == "dribbled-head":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            while not self.api.ended.wait(0.05):
                self.wfile.write(b"x")
        elif fault == "cut":
            self.close_connection = True
        elif fault == "html":
            self._write(200, b"<html>not an API</html>", "text/html")
        elif fault == "html-404":
            self._write(404, b"<html>no such page</html>", "text/html")
        elif fault == "redirect":
            self.send_response(302)
            self.send_header("Location", f"{self.api.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._answer(fault, body)

    def _answer(self, fault: str | None, body: bytes) -> None:
        try:
            if fault is not None:
                raise Refused(int(fault), "InternalError", f"fault {fault}")
            code, found = 200, self.api.answer(self.command, self.path, self.headers, body)
        except Refused as refused:
            code, found = refused.code, refused.status
        self._write(code, json.dumps(found).encode(), "application/json")

    def _write(self, code: int, content: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_DELETE = do_PATCH = _serve


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error here."""


@contextlib.contextmanager
def serving(api: FakeApi, tls: ssl.SSLContext | None = None) -> Iterator[FakeApi]:
    """Serve on a free port of 127.0.0.1."""
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    api.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.ended.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
