"""The proxy that gRPC uses: schemes, ports and names as observed."""

import pytest

from ssfl.program.proxies import Proxy, exempted_by, proxy_for, unused_proxy_note

HOST = "fl.example.org"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"https_proxy": "http://p:3128"}, Proxy("https_proxy", "p", 3128)),
        ({"http_proxy": "http://p"}, Proxy("http_proxy", "p", 443)),
        ({"grpc_proxy": "http://g:1", "https_proxy": "http://p:2"}, Proxy("grpc_proxy", "g", 1)),
        ({"https_proxy": "http://ann:s%40@p:3"}, Proxy("https_proxy", "p", 3, "ann:s@")),
        ({"https_proxy": "https://p:3128"}, None),
        ({"https_proxy": "p:3128"}, None),
        ({"https_proxy": "http://p:port"}, None),
        ({"HTTPS_PROXY": "http://p:3128"}, None),
        ({"https_proxy": "http://p:1", "no_proxy": "other.org, example.org"}, None),
        ({"https_proxy": "http://p:1", "no_grpc_proxy": HOST}, None),
    ],
)
def test_the_variables_are_read_as_grpc_reads_them(
    environ: dict[str, str], expected: Proxy | None
) -> None:
    assert proxy_for(HOST, environ) == expected


def test_loopback_is_never_reached_through_a_proxy() -> None:
    assert proxy_for("localhost", {"https_proxy": "http://p:1"}) is None


def test_an_ignored_proxy_is_reported_with_the_reason() -> None:
    assert "https_proxy is not used" in unused_proxy_note(HOST, {"https_proxy": "p:3128"})
    assert "reads https_proxy, in lower case" in unused_proxy_note(
        HOST, {"HTTPS_PROXY": "http://p:1"}
    )
    assert unused_proxy_note(HOST, {"https_proxy": "http://p:1"}) == ""
    assert unused_proxy_note(HOST, {"https_proxy": "p", "no_proxy": HOST}) == ""
    assert exempted_by(HOST, {"no_proxy": "org"}) == "no_proxy"


def test_an_ipv6_address_has_brackets() -> None:
    assert Proxy("grpc_proxy", "::1", 80).address == "[::1]:80"
