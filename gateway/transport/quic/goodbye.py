"""A close packet: sent once, repeated unasked a little, and to a peer that has not heard it ever more rarely."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.transport.quic.udp import Datagram

REPEATS = 2
"""How often a close is repeated unasked, a probe time-out apart, so within the closing period. A peer that is silent itself
and misses the only copy would hold a dead connection until its idle time is over."""


class Goodbye:
    """What is left to say. Empty until there is a close packet."""

    def __init__(self) -> None:
        self.said = False
        self._datagrams: Sequence[Datagram] = ()
        self._repeats: list[float] = []
        self._echoes = 0
        self._echo_at = 1

    def say(self, datagrams: Sequence[Datagram], now: float, probe: float | None) -> None:
        """These are it. Without a `probe` time-out (an address that proved nothing) it is not repeated unasked."""
        self._datagrams = datagrams
        self.said = bool(datagrams)
        if self.said and probe is not None:
            self._repeats = [now + (count + 1) * probe for count in range(REPEATS)]

    def heard(self) -> None:
        """The peer goes on talking."""
        self._echoes += 1

    def due(self) -> Sequence[float]:
        return self._repeats[:1]

    def again(self, now: float) -> Sequence[Datagram]:
        """What goes out again now: because its time has come, or because the peer has not heard it."""
        again = False
        while self._repeats and self._repeats[0] <= now:
            del self._repeats[0]
            again = True
        if self._echoes >= self._echo_at:
            # RFC 9000, 10.2.1: answer what still comes with the close, ever more rarely.
            self._echo_at = 2 * self._echoes
            again = True
        return self._datagrams if again else ()
