from __future__ import annotations

import pytest

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.link.settings import Link, link_findings
from onrig.runtime.run_loading import load_run


@pytest.mark.parametrize(
    ("link", "at", "message"),
    [
        (Link(listen="tcp://*:5555"), "listen", "open to other machines and there are no keys; make keys with"),
        (Link("tcp://10.0.0.1:5", allow_plain_loopback=True), "listen", "open to other machines"),
        (Link("tcp://127.0.0.1:5"), "listen", "needs link.allow_plain_loopback: true, or make keys"),
        (Link("http://a:5", "k"), "listen", "no endpoint"),
        (Link("tcp://a:70000", "k"), "listen", "there is no port 70000"),
        (Link(keys="k"), "keys", "nobody listens"),
    ],
)
def test_a_link_that_is_open_or_does_not_work_is_refused(link: Link, at: str, message: str) -> None:
    ((path, said),) = link_findings(link)
    assert path == ("link", at)
    assert message in said


@pytest.mark.parametrize(
    "link",
    [Link(), Link("tcp://*:5", "k"), Link("tcp://127.0.0.1:5", allow_plain_loopback=True), Link("tcp://[::1]:5", "k")],
)
def test_a_sound_link_is_taken(link: Link) -> None:
    assert list(link_findings(link)) == []


def test_it_is_said_where() -> None:
    with pytest.raises(ConfigError, match=r"--set link\.listen=tcp://\*:5555:1:\d+: tcp://\*:5555 is open to other"):
        load_run("pendulum", ["link.listen=tcp://*:5555"])
    with pytest.raises(ConfigError, match="link"):
        load_run("pendulum", ["link.port=5"])
