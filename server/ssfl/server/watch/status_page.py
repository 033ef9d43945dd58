"""The status page: a live page in the browser, and the JSON it shows.

Routes for `WebServer`, all read-only. The page loads nothing from other hosts and runs only scripts
of this package (Content-Security-Policy).

A document that has not changed since the ETag in If-None-Match is answered with 304 and no body.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from importlib.resources import files

import orjson

from ssfl.program.monitor.web import Request, Response, Route, text_response
from ssfl.server.run.waiting import STATES
from ssfl.server.watch.status_documents import MAX_POINTS, MAX_ROWS, SORTS, Document, Documents

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
JSON = "application/json; charset=utf-8"
POINTS, ROWS = 400, 50  # defaults
FILTER_CHARACTERS = 64


class BadQuery(ValueError):
    """An invalid query parameter."""


def page_file(name: str) -> bytes:
    """Return a packaged file of the page."""
    return files("ssfl.server").joinpath("page", name).read_bytes()


def page_routes(documents: Documents) -> dict[str, Route]:
    """Return the route of each path."""
    found: dict[str, Route] = {
        path: _file(page_file(name), kind) for path, (name, kind) in FILES.items()
    }
    history = documents.history_mark
    found |= {
        "/api/v1/status": _document(lambda _: documents.status()),
        "/api/v1/clients": _document(lambda request: _clients(documents, request)),
        "/api/v1/rounds": _document(
            lambda request: documents.rounds(_number(request, "points", POINTS, 2, MAX_POINTS)),
            history,
        ),
        "/api/v1/timeline": _document(lambda _: documents.timeline(), history),
        "/api/v1/layers": _document(lambda _: documents.layers(), history),
        "/api/v1/events": _document(lambda request: _events(documents, request)),
        "/api/v1/look": _document(
            lambda request: {
                "status": documents.status(),
                "clients": _clients(documents, request),
                "events": _events(documents, request),
            }
        ),
    }
    return {path: _with_headers(route) for path, route in found.items()}


def _with_headers(route: Route) -> Route:
    def answer(request: Request) -> Response:
        found = route(request)
        return replace(found, headers={**HEADERS, **found.headers})

    return answer


def _file(body: bytes, kind: str) -> Route:
    mark = hashlib.sha256(body).hexdigest()[:24]
    return lambda request: _unless_known(request, mark, kind, lambda: body)


def _document(make: Callable[[Request], Document], mark: Callable[[], str] | None = None) -> Route:
    """Return a route that answers with JSON; `mark` cheaply detects changes."""

    def answer(request: Request) -> Response:
        try:
            if mark:
                return _unless_known(request, mark(), JSON, lambda: _json(make(request)))
            return Response(JSON, _json(make(request)))
        except BadQuery as error:
            return text_response(str(error), HTTPStatus.BAD_REQUEST)

    return answer


def _unless_known(request: Request, mark: str, kind: str, make: Callable[[], bytes]) -> Response:
    headers = {"ETag": f'"{mark}"', "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(kind, b"", HTTPStatus.NOT_MODIFIED, headers)
    return Response(kind, make(), HTTPStatus.OK, headers)


def _json(document: Document) -> bytes:
    try:
        return orjson.dumps(document)  # faster than json, so the run waits less for the GIL
    except TypeError:  # a lone surrogate in some text, which json can escape
        return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def _clients(documents: Documents, request: Request) -> Document:
    order = _choice(request, "order", ("ascending", "descending"))
    return documents.clients(
        filter=request.query.get("filter", "")[:FILTER_CHARACTERS],
        state=_choice(request, "state", ("", *STATES)),
        sort=_choice(request, "sort", SORTS),
        descending=order == "descending",
        offset=_number(request, "offset", 0, 0, 2**31),
        limit=_number(request, "limit", ROWS, 1, MAX_ROWS),
    )


def _events(documents: Documents, request: Request) -> Document:
    return documents.events(_number(request, "after", 0, 0, 2**53))


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    given = request.query.get(name, str(default))
    if not (given.isascii() and given.isdigit() and least <= int(given[:20]) <= most):
        raise BadQuery(f"{name} must be a whole number from {least} to {most}")
    return int(given[:20])


def _choice(request: Request, name: str, choices: tuple[str, ...]) -> str:
    given = request.query.get(name, choices[0])
    if given not in choices:
        raise BadQuery(f"{name} must be one of: {', '.join(filter(None, choices))}")
    return given
