from __future__ import annotations

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.tools.web.guard import (
    FIRST_PORT,
    SECURITY_HEADERS,
    Address,
    Guard,
    format_url,
    listen_at,
    new_token,
    parse_address,
)

LOCAL_HEADERS = {"Host": "127.0.0.1:8089"}
ORDER_HEADERS = {**LOCAL_HEADERS, "Origin": "http://127.0.0.1:8089", "Content-Type": "application/json"}


def status(guard: Guard, headers: dict[str, str], token: str | None = None) -> HTTPStatus | None:
    refusal = guard.refuse(headers, token)
    return None if refusal is None else refusal.status


@pytest.mark.parametrize("host", ["127.0.0.1:8089", "localhost:8089", "LOCALHOST:8089", "[::1]:8089", "10.1.2.3:8089"])
def test_addresses_and_localhost_are_accepted_as_ours(host: str) -> None:
    assert status(Guard(8089, None), {"Host": host}) is None


@pytest.mark.parametrize("host", ["", "evil.example:8089", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:8089:1", "a b:8089"])
def test_another_site_that_resolves_to_our_address_is_not_accepted(host: str) -> None:
    assert status(Guard(8089, None), {"Host": host}) is HTTPStatus.MISDIRECTED_REQUEST


def test_a_machine_is_known_by_its_configured_names() -> None:
    assert status(Guard(8089, None, ["Bench.local"]), {"Host": "bench.local:8089"}) is None


def test_a_token_is_required_and_accepted_from_the_address_or_the_cookie() -> None:
    guard = Guard(8089, "secret")
    assert status(guard, LOCAL_HEADERS) is HTTPStatus.UNAUTHORIZED
    assert status(guard, LOCAL_HEADERS, "wrong") is HTTPStatus.UNAUTHORIZED
    assert status(guard, LOCAL_HEADERS, "secret") is None
    assert status(guard, {**LOCAL_HEADERS, "Cookie": "onrig_8089=secret; other=1"}) is None
    assert status(guard, {**LOCAL_HEADERS, "Cookie": "onrig_8090=secret"}) is HTTPStatus.UNAUTHORIZED
    assert status(guard, {**LOCAL_HEADERS, "Cookie": "onrig_8089=wrong"}) is HTTPStatus.UNAUTHORIZED


@given(st.text(max_size=30), st.text(max_size=60))
def test_no_guess_is_accepted_and_none_causes_an_error(guess: str, cookie: str) -> None:
    guard = Guard(8089, "a token of some length, not guessed")
    assert status(guard, {**LOCAL_HEADERS, "Cookie": cookie}, guess) is HTTPStatus.UNAUTHORIZED


def test_the_cookie_is_inaccessible_to_scripts_and_other_sites() -> None:
    cookie = Guard(8089, "secret").set_cookie
    assert cookie is not None
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert Guard(8089, None).set_cookie is None


def test_an_order_from_our_own_page_is_accepted() -> None:
    assert Guard(8089, None).refuse_command({**ORDER_HEADERS, "Sec-Fetch-Site": "same-origin"}) is None


@pytest.mark.parametrize(
    "changed_headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:8090"},
        {"Origin": "https://127.0.0.1:8089"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": ""},
        {"Content-Type": "text/plain"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_an_order_from_elsewhere_is_refused(changed_headers: dict[str, str]) -> None:
    assert Guard(8089, None).refuse_command({**ORDER_HEADERS, **changed_headers}) is not None


def test_an_order_without_an_origin_is_refused() -> None:
    assert Guard(8089, None).refuse_command({k: v for k, v in ORDER_HEADERS.items() if k != "Origin"}) is not None


def test_the_policy_allows_nothing_from_elsewhere_and_nothing_inline() -> None:
    policy = SECURITY_HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy


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
def test_addresses_are_parsed(text: str, expected: Address) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["0", "65536", "-1", "bench", "bench:", "::1:80", "10.0.0.4", "80.5"])
def test_an_invalid_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"PORT|brackets"):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a", False)],
)
def test_only_loopback_works_without_a_token(host: str, is_loopback: bool) -> None:
    assert Address(host, 80).is_loopback is is_loopback


def test_without_a_port_the_next_free_one_is_taken() -> None:
    with listen_at(Address("127.0.0.1", None)) as first_socket, listen_at(Address("127.0.0.1", None)) as second_socket:
        ports = (first_socket.getsockname()[1], second_socket.getsockname()[1])
    assert FIRST_PORT <= ports[0] < ports[1]


def test_a_port_in_use_is_reported() -> None:
    with listen_at(Address("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port}.*choose another port"):
            listen_at(Address("127.0.0.1", port))


def test_the_url_names_an_address_that_others_can_open() -> None:
    assert format_url(Address("127.0.0.1", None), 8089, None) == "http://127.0.0.1:8089/"
    assert format_url(Address("::1", 80), 80, None) == "http://[::1]:80/"
    url = format_url(Address("0.0.0.0", 80), 80, "t")
    assert url.endswith(":80/?token=t")
    assert "0.0.0.0" not in url


def test_tokens_are_long_and_unique() -> None:
    assert new_token() != new_token()
    assert len(new_token()) >= 32
