"""Regular expressions whose cost grows with the text alone, whatever the pattern.

A filter comes from any client and runs over thousands of records, so a matcher that backtracks would hand everyone a
way to stop the gateway with twenty characters. This one follows all alternatives at once (a set of positions in the
pattern) and remembers the sets it has met, as RE2 does, whose syntax the original speaks: no back references, no
looking around. Only whether there is a match is asked for, so lazy quantifiers mean the same as greedy ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from gateway.errors import InvalidRequest

SPECIAL = frozenset("\\.[](){}*+?|^$")
MOST_NODES = 1_000
MOST_REPEATS = 1_000
MOST_DEPTH = 50
MOST_WORK = 500_000
"""Positions looked at before a pattern is given up: remembered steps are free, so an ordinary one never gets near it."""
MOST_REMEMBERED = 20_000
"""Transitions kept before all are forgotten: a bound on memory, not on what can be matched."""


@attrs.frozen
class _Chars:
    """A set of characters as ranges."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False

    def holds(self, letter: str) -> bool:
        return any(low <= letter <= high for low, high in self.ranges) != self.negated


_DIGIT = (("0", "9"),)
_WORD = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACE = (("\t", "\n"), ("\f", "\r"), (" ", " "))
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_ANY = _Chars((("\n", "\n"),), negated=True)

_START = object()
_END = object()
_MATCH = object()
_Label = object
"""What a node waits for: characters, the text's start or end; None for a fork; _MATCH for the goal."""


class Pattern:
    """A compiled pattern. Raises InvalidRequest for what is not one."""

    def __init__(self, text: str) -> None:
        self._labels: list[_Label] = []
        self._next: list[list[int]] = []
        parser = _Parser(text, self)
        first, last = parser.parse()
        goal = self.node(_MATCH)
        self._next[last].append(goal)
        self._first = first
        self._work = 0
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._begin = self._close((first,), at_start=True)
        self._again = self._close((first,))

    def node(self, label: _Label) -> int:
        """A new node without successors."""
        if len(self._labels) >= MOST_NODES:
            raise InvalidRequest("invalid filter: the pattern is too large")
        self._labels.append(label)
        self._next.append([])
        return len(self._labels) - 1

    def link(self, source: int, target: int) -> None:
        """`target` may follow `source`."""
        self._next[source].append(target)

    def found(self, text: str) -> bool:
        """Whether the pattern matches anywhere in the text. Raises InvalidRequest when that takes too much work."""
        known = self._known
        current = self._begin
        for letter in text:
            if -1 in current:
                return True
            following = known.get((current, letter))
            if following is None:
                following = self._step(current, letter)
            current = following
        return -1 in current or self._ends(current, empty=not text)

    def _step(self, current: frozenset[int], letter: str) -> frozenset[int]:
        reached = [
            target
            for node in current
            if isinstance(label := self._labels[node], _Chars) and label.holds(letter)
            for target in self._next[node]
        ]
        following = self._close(reached) | self._again
        self._work += len(current) + len(following)
        if self._work > MOST_WORK:
            raise InvalidRequest("invalid filter: the pattern is too costly")
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[current, letter] = following
        return following

    def _ends(self, current: frozenset[int], *, empty: bool) -> bool:
        waiting = [node for node in current if self._labels[node] is _END]
        beyond = [target for node in waiting for target in self._next[node]]
        return -1 in self._close(beyond, at_start=empty, at_end=True)

    def _close(self, nodes: Iterable[int], *, at_start: bool = False, at_end: bool = False) -> frozenset[int]:
        """Every node that is reached without reading anything; -1 stands for the goal."""
        seen: set[int] = set()
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            label = self._labels[node]
            if label is None or (label is _START and at_start) or (label is _END and at_end):
                waiting.extend(self._next[node])
        goal = {-1} if any(self._labels[node] is _MATCH for node in seen) else set()
        return frozenset({node for node in seen if self._labels[node] is not None} | goal)


_Part = tuple[int, int]
"""First and last node of a piece of the graph."""


class _Parser:
    """Recursive descent; each method returns the piece of graph for what it read."""

    def __init__(self, text: str, pattern: Pattern) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._pattern = pattern

    def parse(self) -> _Part:
        part = self._alternatives()
        if self._at < len(self._text):
            self._refuse("unbalanced )")
        return part

    def _refuse(self, why: str) -> None:
        raise InvalidRequest(f"invalid filter: {why} at {self._at}")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        letter = self._peek()
        if not letter:
            self._refuse("the pattern ends too early")
        self._at += 1
        return letter

    def _alternatives(self) -> _Part:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            self._refuse("nested too deeply")
        first, last = self._pattern.node(None), self._pattern.node(None)
        while True:
            start, end = self._sequence()
            self._pattern.link(first, start)
            self._pattern.link(end, last)
            if self._peek() != "|":
                break
            self._at += 1
        self._depth -= 1
        return first, last

    def _sequence(self) -> _Part:
        first = last = self._pattern.node(None)
        while self._peek() not in {"", "|", ")"}:
            start, end = self._repeated()
            self._pattern.link(last, start)
            last = end
        return first, last

    def _repeated(self) -> _Part:
        begin = self._at
        part = self._atom()
        letter = self._peek()
        if letter not in {"*", "+", "?", "{"}:
            return part
        after_atom = self._at
        least, most = self._bounds()
        after = self._at
        if self._peek() == "?":  # lazy: the same matches
            after += 1
        pattern = self._pattern
        first = last = pattern.node(None)
        for index in range(max(least, 1 if most is None else most)):
            if index:  # each copy is parsed anew
                self._at = begin
                part = self._atom()
                if self._at != after_atom:
                    self._refuse("bad repeat")
            pattern.link(last, part[0])
            skip, last = last, pattern.node(None)
            pattern.link(part[1], last)
            if index >= least:
                pattern.link(skip, last)
        if most is None:
            pattern.link(last, part[0])
        self._at = after
        if self._peek() in {"*", "+", "?"}:
            self._refuse("a repeat of a repeat")
        return first, last

    def _bounds(self) -> tuple[int, int | None]:
        letter = self._take()
        if letter != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[letter]
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at : end].partition(",")
        if end < 0 or not low.isdecimal() or (high and not high.isdecimal()) or len(low) > 4 or len(high) > 4:
            self._refuse("bad repeat")
        self._at = end + 1
        least = int(low)
        most = int(high) if high else (None if comma else least)
        if least > MOST_REPEATS or (most is not None and not least <= most <= MOST_REPEATS):
            self._refuse("bad repeat")
        return least, most

    def _atom(self) -> _Part:
        letter = self._take()
        if letter == "(":
            return self._group()
        if letter in "*+?{":
            self._refuse("nothing to repeat")
        label: _Label
        if letter == "[":
            label = self._class()
        elif letter == "\\":
            label = self._escape()
        else:
            label = {".": _ANY, "^": _START, "$": _END}.get(letter) or _Chars(((letter, letter),))
        node = self._pattern.node(label)
        after = self._pattern.node(None)
        self._pattern.link(node, after)
        return node, after

    def _group(self) -> _Part:
        if self._peek() == "?":
            self._at += 1
            if self._take() != ":":
                self._refuse("unsupported group")
        part = self._alternatives()
        if self._take() != ")":
            self._refuse("missing )")
        return part

    def _escape(self) -> _Chars:
        letter = self._take()
        if letter.lower() in _CLASSES:
            return _Chars(_CLASSES[letter.lower()], negated=letter.isupper())
        return _Chars(((code := self._code(letter), code),))

    def _code(self, letter: str) -> str:
        """The one character behind a backslash."""
        if letter == "x":
            digits = self._take() + self._take()
            try:
                return chr(int(digits, 16))
            except ValueError:
                self._refuse("bad escape")
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter.isalnum():
            self._refuse(f"unsupported escape \\{letter}")
        return letter

    def _class(self) -> _Chars:
        negated = self._peek() == "^"
        if negated:
            self._at += 1
        ranges: list[tuple[str, str]] = []
        while True:
            letter = self._take()
            if letter == "]" and ranges:
                return _Chars(tuple(ranges), negated)
            if letter == "\\":
                letter = self._take()
                if letter in _CLASSES:
                    ranges.extend(_CLASSES[letter])
                    continue
                letter = self._code(letter)
            high = letter
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in {"", "]"}:
                self._at += 1
                high = self._take()
                if high == "\\":
                    high = self._code(self._take())
                if high < letter:
                    self._refuse("bad range")
            ranges.append((letter, high))
