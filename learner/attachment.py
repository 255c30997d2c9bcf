"""What a learner is to a rig: a session that outlives its connections, a mirror of the memory, the right to push."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Literal

from onrig.hw.rig import Rig
from onrig.learner.mirror import Mirror
from onrig.runtime.config.conversion import convert
from onrig.runtime.config.document import parse_document
from onrig.runtime.link.client import LinkClient, RequestRejected
from onrig.runtime.link.messages import (
    LEASE,
    LINK_VERSION,
    UNKNOWN,
    VERSION,
    Attach,
    Attached,
    Pull,
    ReplyMessage,
    RequestMessage,
    Rows,
    Ruling,
)
from onrig.runtime.replay.memory.layout import Slots
from onrig.runtime.replay.settings import Weighted
from onrig.runtime.run_config import RunConfig

Role = Literal["push", "watch"]


class Unfit(Exception):
    """This learner cannot serve that rig; says why."""


class OtherVersion(Exception):
    """The two ends of the link speak different versions; says which."""


class MemoryChanged(Exception):
    """What answers has another memory than the one mirrored here."""


class LeaseLost(Exception):
    """Another learner pushes now; says who."""


class Attachment:
    """Asks on behalf of one session; after an outage it attaches again and repeats what was not answered.

    ``role`` is what it wants to be.  ``note`` hears, in a line, of outages that are over; ``ruled`` of what became of
    admitted policies once they acted.
    """

    def __init__(
        self,
        config: RunConfig,
        client: LinkClient,
        role: Role,
        note: Callable[[str], object] = lambda line: None,
        ruled: Callable[[Ruling], object] = lambda ruling: None,
    ) -> None:
        self._config, self._client, self._role, self._note, self._ruled = config, client, role, note, ruled
        self._heard = 0
        self._session: Final = os.urandom(16)
        self._memory = b""
        self.mirror: Mirror | None = None

    def attach(self) -> Attached:
        """Introduce this learner, for the first time or again, and ask for its turn to push.

        Raises Unfit for a rig that is not the one configured, OtherVersion, and MemoryChanged where a mirror was begun
        and the rig's memory is another one now.
        """
        try:
            attached, _ = self._client.ask(Attach(LINK_VERSION, self._session, self._role, self._memory))
        except RequestRejected as refusal:
            if refusal.code == VERSION:
                raise OtherVersion(str(refusal)) from None
            raise
        if not isinstance(attached, Attached):
            raise Unfit(f"unexpected answer to attach: {type(attached).__name__}")
        if attached.version != LINK_VERSION:
            raise OtherVersion(f"the rig speaks version {attached.version} of the link, the learner {LINK_VERSION}")
        if self.mirror is None:
            self._begin(attached)
        elif attached.memory != self._memory:
            raise MemoryChanged("the rig's memory is another one now")
        return attached

    def _begin(self, attached: Attached) -> None:
        theirs = convert(parse_document(attached.config.decode(), "the rig's configuration"), ("rig",), Rig)
        if theirs != self._config.rig:
            raise Unfit(f"the rig at the other end, '{theirs.name}', is not described as in this configuration")
        intervened = self._config.selection.intervened
        self.mirror = Mirror(
            attached.capacity,
            len(theirs.signals),
            len(theirs.actuators),
            cyclic=attached.cyclic,
            intervened_weight=intervened.weight if isinstance(intervened, Weighted) else 1.0,
        )
        self._memory = attached.memory

    def ask(self, request: RequestMessage, *payloads: bytes) -> ReplyMessage:
        """Ask, on as many connections as it takes; raises LeaseLost, MemoryChanged, and what the client raises."""
        return self._ask(request, *payloads)[0]

    def pull(self, closed: int, wait_ms: int) -> tuple[Rows, Slots | None]:
        """Mirror the writes that are missing here, or one piece of them; the slots written, in order, if any were.

        ``closed`` and ``wait_ms`` as in Pull: wait so long for a write, or for a later training episode to close.
        """
        mirror = self._mirror()
        rows, payloads = self._ask(Pull(mirror.storage.inserted, closed, wait_ms, heard=self._heard))
        if not isinstance(rows, Rows) or len(payloads) != 1:
            raise Unfit("the rig answered a pull with something else")
        for ruling in rows.rulings:
            if ruling.number > self._heard:
                self._heard = ruling.number
                self._ruled(ruling)
        try:
            return rows, mirror.apply(payloads[0], rows.upto) if payloads[0] else None
        except ValueError as error:
            raise Unfit(f"the rig sent what does not continue the mirror: {error}") from None

    def _mirror(self) -> Mirror:
        if self.mirror is None:
            self.attach()
        assert self.mirror is not None
        return self.mirror

    def _ask(self, request: RequestMessage, *payloads: bytes) -> tuple[ReplyMessage, list[bytes]]:
        while True:
            try:
                return self._client.ask(request, *payloads)
            except RequestRejected as refusal:
                if refusal.code == LEASE:
                    raise LeaseLost(str(refusal)) from None
                if refusal.code != UNKNOWN:
                    raise
            attached = self.attach()
            at = self._mirror().storage.inserted
            self._note(f"the link is back; going on from write {at} of {attached.inserted}")
            if self._role == "push" and not attached.pushes and not isinstance(request, Pull):
                raise LeaseLost(attached.why)
