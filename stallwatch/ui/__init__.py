"""How the pages of both programs look: one style sheet, one script, a base template, and the headers that guard them.

A program calls `add_to(app, "its.package")`, keeps its templates in that package's folder `templates/`, lets them
extend `ui/base.html`, and renders them with `page(...)`. The base template wants `program` (name at the top) and
`at` (Unix seconds of what is shown); its blocks are `title`, `nav` (items of the list at the top) and `main`.

Names that a template may use:
- filters: `utc` (2026-12-01 04:23:11), `iso`, `duration`, `ago`, `figure` (a number), all from `stallwatch.ui.words`;
- `root`: the relative way to the program's own root, so that the pages work under any prefix of a proxy;
- `ui/parts.html`: macros `icon(shape)`, `tag(tone, shape, word)`, `when(wall, now)`, `bar(value, most, mark)`;
- classes of tone: `bad`, `warn`, `note`, `good`. Colour is never alone: a shape and a word stand beside it.

What the script does, wherever a page wants it: `<main data-refresh-seconds="5">` makes it fetch the same address
again and replace each element with `data-live` by the new one of the same id; the focus, open `<details>` and the
place scrolled to stay. An element with `data-announce` is read aloud when its text changes. It stops while the page
is hidden, and by the button beside the time.

No page needs the script. Nothing is loaded from elsewhere, and no page holds a style or a script of its own.
"""

from __future__ import annotations

import hashlib
from importlib import resources

from flask import Flask, Response, abort, render_template, request
from jinja2 import ChoiceLoader, PackageLoader, PrefixLoader, StrictUndefined

from stallwatch.ui import words

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
FOR_EVER = "public, max-age=31536000, immutable"
TYPES = {"stallwatch.css": "text/css; charset=utf-8", "stallwatch.js": "text/javascript; charset=utf-8"}


def add_to(app: Flask, package: str) -> None:
    """Let `app` render the templates of `package` and of this one, and serve `/static/...`."""
    folder = resources.files(__name__)
    assets = {name: (folder / name).read_bytes() for name in TYPES}
    versions = {name: hashlib.sha256(body).hexdigest()[:16] for name, body in assets.items()}
    app.jinja_env.loader = ChoiceLoader([PackageLoader(package), PrefixLoader({"ui": PackageLoader(__name__)})])
    app.jinja_env.undefined = StrictUndefined
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters.update(
        utc=words.utc, iso=words.iso, duration=words.duration, ago=words.ago, figure=words.figure
    )

    @app.context_processor
    def names() -> dict[str, object]:
        """The names that every template has."""
        root = root_of(request.path)
        return {"root": root, "assets": {name: f"{root}static/{name}?v={tag}" for name, tag in versions.items()}}

    @app.get("/static/<name>")
    def static_file(name: str) -> Response:
        """The style sheet and the script; an address with their version may be kept for ever."""
        if name not in assets:
            abort(404)
        answer = Response(assets[name], content_type=TYPES[name])
        current = request.args.get("v") == versions[name]
        answer.headers["Cache-Control"] = FOR_EVER if current else "no-cache"
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.set_etag(versions[name])
        answer.make_conditional(request)
        return answer


def page(template: str, status: int = 200, **values: object) -> Response:
    """A page with its guarding headers; it is never kept, since it shows the present."""
    answer = Response(render_template(template, **values), status, content_type="text/html; charset=utf-8")
    answer.headers.update(HEADERS)
    answer.headers["Cache-Control"] = "no-store"
    return answer


def root_of(path: str) -> str:
    """The relative way from a path of the program to its root: `./` from `/x`, `../` from `/x/y`."""
    return "../" * (path.count("/") - 1) or "./"
