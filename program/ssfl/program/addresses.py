"""Parsing of addresses such as host:port."""

from ipaddress import ip_address


def split(address: str) -> tuple[str, int]:
    """Return host and port of "host:port" or "[::1]:port"; raise ValueError if it is neither."""
    host, _, port = address.rpartition(":")
    number = int(port)
    if not (host and 0 < number < 65536):
        raise ValueError(f"{address!r} is not host:port")
    return host.strip("[]"), number


def is_loopback(host: str) -> bool:
    """Return True if `host` is a loopback address or localhost."""
    if host.lower().removesuffix(".") == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
