"""The step that holds messages against schemas: here when that is quick, in a thread when it would hold up the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.broker.administration.schemas import SchemaService, Verdict
from gateway.broker.offload import Offload
from gateway.broker.publish.door import Doors
from gateway.broker.publish.publication import Part, Publication
from gateway.errors import GatewayError
from gateway.routing.table import RoutingTable

Resume = Callable[[GatewayError | None], None]
Pause = Callable[[Resume], None]
"""Something that has to be waited for: it calls back when the publication can go on, or with what refuses it."""

_Todo = Sequence[tuple[Part, str]]


class SchemaGate:
    """A topic's own schema, and the one that the publisher names."""

    def __init__(self, schemas: SchemaService, table: RoutingTable, offload: Offload, doors: Doors) -> None:
        self._schemas = schemas
        self._table = table
        self._offload = offload
        self._doors = doors

    def validate(self, publication: Publication) -> Pause | None:
        if not publication.schema and not self._table.has_schemas:
            return None
        return self._work_off(
            publication, [(part, name) for part in publication.parts for name in self._names(part, publication.schema)]
        )

    def _names(self, part: Part, named: str) -> list[str]:
        names = {self._table.topic_config(topic).schema for topic in part.route.topics} | {named}
        return sorted(names - {""})

    def _work_off(self, publication: Publication, todo: _Todo) -> Pause | None:
        for done, (part, name) in enumerate(todo):
            if part.columns.count:
                verdict = self._schemas.check_quickly(name, part.columns)
                if verdict is None:
                    rest = todo[done:]
                    return lambda resume: self._check_elsewhere(publication, rest, resume)
                self._refuse(publication, part, verdict)
        return None

    def _check_elsewhere(self, publication: Publication, todo: _Todo, resume: Resume) -> None:
        part, name = todo[0]

        def done(verdict: Verdict | GatewayError) -> None:
            try:
                if isinstance(verdict, GatewayError):
                    raise verdict
                self._refuse(publication, part, verdict)
                pause = self._work_off(publication, todo[1:])
            except GatewayError as error:
                resume(error)
                return
            if pause is not None:
                pause(resume)
            else:
                resume(None)

        self._offload.thread(self._schemas.checking(name, part.columns), done)

    def _refuse(self, publication: Publication, part: Part, verdict: Verdict) -> None:
        if not verdict:
            return
        first = next(iter(verdict.values()))
        if publication.batch.columns.count == 1:
            raise first
        publication.refused |= {part.member(index): violation for index, violation in verdict.items()}
        self._doors.refuse(part.route.name, len(verdict), first)
        part.keep([index for index in range(part.columns.count) if index not in verdict])
