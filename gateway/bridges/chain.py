"""Requests of one forward that are under way at once, each stored by the target behind the one before it or not at all.

A target that can tell by what it is sent what it was sent before (`Copies`) can also be told what comes before a request. So a
message need not wait until the request before it is answered: when that is refused, what was sent behind it is refused too, and
all of it goes again, in order. Where a target cannot be told, or a request has failed, or the connection is of no more use, the
requests under way are no chain, and another one begins when all of them are answered. Of what may have been sent before no chain
is made: that a message is there would say nothing about those that went with it this time, or before it.

A chain is for few messages, which would wait half a round trip each. Of many, those that wait go in one request.
"""

from __future__ import annotations

import itertools
from collections import deque

import attrs

from gateway.bridges.breaker import is_outage
from gateway.bridges.pool import PooledConnection
from gateway.envelope import Copies
from gateway.errors import GatewayError, TargetOutOfTurn, TargetRefused
from gateway.requests import Outcome, Published

REQUESTS = 8
MESSAGES = 64
"""Of so much that is under way nothing goes behind."""


@attrs.define(eq=False)
class ChainedRequest:
    connection: PooledConnection
    messages: int
    in_chain: bool
    orphaned: bool = False
    """What was to be stored before it was not."""


class Chain:
    def __init__(self) -> None:
        self._requests: deque[ChainedRequest] = deque()
        self._messages = 0
        self._connection: PooledConnection | None = None
        """On which all of them are, in order; None where they are no chain."""
        self.after: tuple[int, bytes, int] | None = None
        """What the next request comes after."""
        self.orphans = 0
        """Requests under way behind one that failed. While there are some nothing is sent: what is sent again could be stored,
        over another connection, before they are looked at. They come after it, and would be there before what belongs in
        between."""

    @property
    def connection(self) -> PooledConnection | None:
        """Where the next request goes, behind those that are under way; None: it goes by itself, wherever there is room."""
        connection = self._connection
        if connection is not None and not connection.of_use:
            self.leave()
            return None
        return connection

    @property
    def beside(self) -> PooledConnection | None:
        """Where whatever is sent now goes, as long as there is a chain under way, in it or not: what comes by another connection
        would break it.
        """
        for request in self._requests:
            if request.in_chain and request.connection.of_use:
                return request.connection
        return None

    @property
    def short(self) -> bool:
        """Whether there is a chain, and so little in it that more goes behind."""
        return self._connection is not None and len(self._requests) < REQUESTS and self._messages < MESSAGES

    def leave(self) -> None:
        """What is sent next has no place in a chain."""
        self._connection = self.after = None

    def add(self, connection: PooledConnection, copies: Copies | None, messages: int, *, again: bool) -> ChainedRequest:
        """One more is sent there, perhaps not for the first time, as `connection` and `after` say."""
        if not self._requests and copies is not None and connection.keeps_turns and not again:
            self._connection = connection
        chained = self._connection is not None
        if chained and copies is not None:
            self.after = copies.last
        request = ChainedRequest(connection, messages, chained)
        self._requests.append(request)
        self._messages += messages
        return request

    def ended(self, request: ChainedRequest, outcome: Outcome) -> bool:
        """It is answered. Whether that says nothing about its messages: they were refused for what came before them."""
        refused = isinstance(outcome, TargetRefused) and not is_outage(outcome) and request.in_chain
        out_of_turn = refused and isinstance(outcome, TargetOutOfTurn)
        if out_of_turn and not request.orphaned:
            request.connection.out_of_turn = True  # it would say so of each
        requests = self._requests
        behind = requests.index(request)  # mostly the first
        del requests[behind]
        self.orphans -= request.orphaned
        self._messages -= request.messages
        taken = not (isinstance(outcome, GatewayError) or (isinstance(outcome, Published) and outcome.refused))
        if not taken and request.in_chain:
            for other in itertools.islice(requests, behind, None):
                self.orphans += other.in_chain and not other.orphaned
                other.orphaned = other.in_chain
            self.leave()
        if not requests:
            self.leave()
        return out_of_turn or (refused and request.orphaned)
