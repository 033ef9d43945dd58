"""The proxy that gRPC uses to reach a host, from the same variables as gRPC.

gRPC uses the first variable that is set. It reads only lower-case names and only values of the
form http://host:port, and sends CONNECT to the proxy. An entry of `no_proxy` exempts every host
whose name ends with it. Any other variable or value is ignored, and the connection is direct.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from ssfl.program.addresses import is_loopback

PROXIES, NO_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy"), ("no_grpc_proxy", "no_proxy")
_DEFAULT_PORT = 443  # gRPC's, although the scheme is http


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy and the variable that names it."""

    variable: str
    host: str
    port: int
    credentials: str = ""  # user:password

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def proxy_for(host: str, environ: Mapping[str, str] | None = None) -> Proxy | None:
    """Return the proxy that gRPC uses to reach `host`, or None for a direct connection."""
    environ = os.environ if environ is None else environ
    variable = _first(environ)
    if not variable or is_loopback(host) or exempted_by(host, environ):
        return None
    try:
        parts = urlsplit(environ[variable])
        host, port = parts.hostname or "", parts.port or _DEFAULT_PORT
    except ValueError:
        return None
    if parts.scheme != "http" or not host:
        return None
    user = f"{parts.username}:{parts.password or ''}" if parts.username else ""
    return Proxy(variable, host, port, unquote(user))


def exempted_by(host: str, environ: Mapping[str, str]) -> str:
    """Return the variable that exempts `host` from every proxy; empty if none does."""
    for name in NO_PROXIES:
        parts = [part.strip() for part in environ.get(name, "").split(",")]
        if any(part and host.endswith(part) for part in parts):
            return name
    return ""


def unused_proxy_note(host: str, environ: Mapping[str, str]) -> str:
    """Return why gRPC ignores the proxy variable that is set, or an empty string."""
    if is_loopback(host) or exempted_by(host, environ) or proxy_for(host, environ):
        return ""
    if variable := _first(environ):
        return f"{variable} is not used: gRPC needs the form http://host:port"
    upper = next((name.upper() for name in PROXIES if environ.get(name.upper())), "")
    return f"{upper} is not used: gRPC reads {upper.lower()}, in lower case" if upper else ""


def _first(environ: Mapping[str, str]) -> str:
    return next((name for name in PROXIES if environ.get(name)), "")
