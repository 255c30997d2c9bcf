from __future__ import annotations

from http import HTTPStatus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.tools.web.guard import SECURITY_HEADERS, Guard

HERE = {"Host": "127.0.0.1:8089"}
ORDER = {**HERE, "Origin": "http://127.0.0.1:8089", "Content-Type": "application/json"}


def status(guard: Guard, headers: dict[str, str], token: str | None = None) -> HTTPStatus | None:
    refusal = guard.refuse(headers, token)
    return None if refusal is None else refusal.status


@pytest.mark.parametrize("host", ["127.0.0.1:8089", "localhost:8089", "LOCALHOST:8089", "[::1]:8089", "10.1.2.3:8089"])
def test_addresses_and_localhost_are_us(host: str) -> None:
    assert status(Guard(8089, None), {"Host": host}) is None


@pytest.mark.parametrize("host", ["", "evil.example:8089", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:8089:1", "a b:8089"])
def test_another_site_that_resolves_to_us_is_not_us(host: str) -> None:
    assert status(Guard(8089, None), {"Host": host}) is HTTPStatus.MISDIRECTED_REQUEST


def test_a_machine_is_known_by_its_own_names_where_it_is_told_them() -> None:
    assert status(Guard(8089, None, ["Bench.local"]), {"Host": "bench.local:8089"}) is None


def test_a_token_is_asked_for_and_taken_from_the_address_or_the_cookie() -> None:
    guard = Guard(8089, "secret")
    assert status(guard, HERE) is HTTPStatus.UNAUTHORIZED
    assert status(guard, HERE, "wrong") is HTTPStatus.UNAUTHORIZED
    assert status(guard, HERE, "secret") is None
    assert status(guard, {**HERE, "Cookie": "onrig_8089=secret; other=1"}) is None
    assert status(guard, {**HERE, "Cookie": "onrig_8090=secret"}) is HTTPStatus.UNAUTHORIZED
    assert status(guard, {**HERE, "Cookie": "onrig_8089=wrong"}) is HTTPStatus.UNAUTHORIZED


@settings(deadline=None)
@given(st.text(max_size=30), st.text(max_size=60))
def test_no_guess_is_good_and_none_breaks_it(guess: str, cookie: str) -> None:
    guard = Guard(8089, "a token of some length, not guessed")
    assert status(guard, {**HERE, "Cookie": cookie}, guess) is HTTPStatus.UNAUTHORIZED


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites() -> None:
    cookie = Guard(8089, "secret").set_cookie
    assert cookie is not None
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert Guard(8089, None).set_cookie is None


def test_an_order_from_our_own_page_is_taken() -> None:
    assert Guard(8089, None).refuse_order({**ORDER, "Sec-Fetch-Site": "same-origin"}) is None


@pytest.mark.parametrize(
    "change",
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
def test_an_order_from_elsewhere_is_not(change: dict[str, str]) -> None:
    assert Guard(8089, None).refuse_order({**ORDER, **change}) is not None


def test_an_order_without_an_origin_is_not_taken() -> None:
    assert Guard(8089, None).refuse_order({k: v for k, v in ORDER.items() if k != "Origin"}) is not None


def test_the_policy_allows_nothing_from_elsewhere_and_nothing_inline() -> None:
    policy = SECURITY_HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy
