from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.link.endpoint import Link, TcpEndpoint, link_findings, parse_tcp
from onrig.runtime.run_loading import load_run


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback"),
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
def test_an_endpoint_is_parsed_and_classified_as_local_or_not(
    text: str, host: str, port: int, is_loopback: bool
) -> None:
    tcp = parse_tcp(text)
    assert (tcp, str(tcp), tcp.is_loopback) == (TcpEndpoint(host, port), text, is_loopback)


@pytest.mark.parametrize(
    "text",
    ["", "tcp://", "tcp://:5", "tcp://a", "tcp://a:", "tcp://a:b", "tcp://a:65536", "udp://a:1", "tcp://a:1;b:2"],
)
def test_an_invalid_endpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an endpoint|out of range"):
        parse_tcp(text)


@given(st.text(max_size=30))
def test_no_text_raises_anything_else(text: str) -> None:
    for candidate in (text, f"tcp://{text}", f"tcp://{text}:5"):
        try:
            assert str(parse_tcp(candidate))
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("link", "setting", "message"),
    [
        (Link(listen="tcp://*:5555"), "listen", "open to other machines without keys; make keys with"),
        (Link("tcp://10.0.0.1:5", allow_plain_loopback=True), "listen", "open to other machines"),
        (Link("tcp://127.0.0.1:5"), "listen", "needs link.allow_plain_loopback: true, or make keys"),
        (Link("http://a:5", "k"), "listen", "not an endpoint"),
        (Link("tcp://a:70000", "k"), "listen", "port 70000 is out of range"),
        (Link(keys="k"), "keys", "have no effect without link.listen"),
    ],
)
def test_an_open_or_broken_link_is_refused(link: Link, setting: str, message: str) -> None:
    ((path, problem_message),) = link_findings(link)
    assert path == ("link", setting)
    assert message in problem_message


@pytest.mark.parametrize(
    "link",
    [Link(), Link("tcp://*:5", "k"), Link("tcp://127.0.0.1:5", allow_plain_loopback=True), Link("tcp://[::1]:5", "k")],
)
def test_a_valid_link_is_accepted(link: Link) -> None:
    assert list(link_findings(link)) == []


def test_problems_are_reported_at_their_place() -> None:
    with pytest.raises(ConfigError, match=r"--set link\.listen=tcp://\*:5555:1:\d+: tcp://\*:5555 is open to other"):
        load_run("pendulum", ["link.listen=tcp://*:5555"])
    with pytest.raises(ConfigError, match="link"):
        load_run("pendulum", ["link.port=5"])
