from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.link.endpoint import Tcp, parse_tcp


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("tcp://127.0.0.1:5555", "127.0.0.1", 5555, True),
        ("tcp://127.8.8.8:1", "127.8.8.8", 1, True),
        ("tcp://localhost:5555", "localhost", 5555, True),
        ("tcp://[::1]:5555", "[::1]", 5555, True),
        ("tcp://*:5555", "*", 5555, False),
        ("tcp://0.0.0.0:5555", "0.0.0.0", 5555, False),
        ("tcp://10.0.0.2:65535", "10.0.0.2", 65535, False),
        ("tcp://rig.local:5555", "rig.local", 5555, False),
        ("tcp://localhost.example.org:1", "localhost.example.org", 1, False),
        ("tcp://127.0.0.1.example.org:1", "127.0.0.1.example.org", 1, False),
        ("tcp://[fe80::1%eth0]:5555", "[fe80::1%eth0]", 5555, False),
    ],
)
def test_an_endpoint_is_read_and_known_to_be_of_this_machine_or_not(
    text: str, host: str, port: int, loopback: bool
) -> None:
    tcp = parse_tcp(text)
    assert (tcp, str(tcp), tcp.loopback) == (Tcp(host, port), text, loopback)


@pytest.mark.parametrize(
    "text",
    ["", "tcp://", "tcp://:5", "tcp://a", "tcp://a:", "tcp://a:b", "tcp://a:65536", "udp://a:1", "tcp://a:1;b:2"],
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no endpoint|no port"):
        parse_tcp(text)


@given(st.text(max_size=30))
def test_no_text_makes_reading_it_raise_anything_else(text: str) -> None:
    for candidate in (text, f"tcp://{text}", f"tcp://{text}:5"):
        try:
            assert str(parse_tcp(candidate))
        except ValueError:
            continue
