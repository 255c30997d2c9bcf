from __future__ import annotations

import pytest

from onrig.tools.web.address import FIRST_PORT, Address, listen_at, new_token, parse_address, url_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Address("127.0.0.1", None)),
        ("8090", Address("127.0.0.1", 8090)),
        ("10.0.0.4:80", Address("10.0.0.4", 80)),
        ("bench.local:8089", Address("bench.local", 8089)),
        ("*:8089", Address("0.0.0.0", 8089)),
        (":8089", Address("0.0.0.0", 8089)),
        ("[::1]:8089", Address("::1", 8089)),
    ],
)
def test_addresses_are_understood(text: str, expected: Address) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["0", "65536", "-1", "bench", "bench:", "::1:80", "10.0.0.4", "80.5"])
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"PORT|brackets"):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a", False)],
)
def test_only_loopback_goes_without_a_token(host: str, loopback: bool) -> None:
    assert Address(host, 80).is_loopback is loopback


def test_without_a_port_the_next_free_one_is_taken() -> None:
    with listen_at(Address("127.0.0.1", None)) as first, listen_at(Address("127.0.0.1", None)) as second:
        ports = (first.getsockname()[1], second.getsockname()[1])
    assert FIRST_PORT <= ports[0] < ports[1]


def test_a_port_that_is_taken_is_said_so() -> None:
    with listen_at(Address("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port}.*--web PORT"):
            listen_at(Address("127.0.0.1", port))


def test_the_url_names_an_address_that_others_can_open() -> None:
    assert url_of(Address("127.0.0.1", None), 8089, None) == "http://127.0.0.1:8089/"
    assert url_of(Address("::1", 80), 80, None) == "http://[::1]:80/"
    url = url_of(Address("0.0.0.0", 80), 80, "t")
    assert url.endswith(":80/?token=t")
    assert "0.0.0.0" not in url


def test_tokens_differ_and_are_long() -> None:
    assert new_token() != new_token()
    assert len(new_token()) >= 32
