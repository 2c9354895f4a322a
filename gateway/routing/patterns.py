"""What two patterns have in common, decided exactly.

A pattern is a row of symbols: one character, or a class of characters that may repeat. That is a small automaton whose
states are the symbols (Glushkov's construction, which has no empty moves), and the three questions of a routing table are
walks over it: can two patterns match one address, does one match everything the other does, can one address be read in
two ways.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence

import attrs

_BOUND = 20_000
"""States that are visited before a question is given up (and answered on the safe side)."""


@attrs.frozen
class Symbol:
    """One character (`char`), or any but those in `excluded`; `repeat` once or more, with `optional` none at all."""

    char: str = ""
    excluded: str = ""
    repeat: bool = False
    optional: bool = False

    def takes(self, char: str) -> bool:
        return char == self.char if self.char else char not in self.excluded

    def common(self, other: Symbol) -> str:
        """A character both match; empty if there is none."""
        if self.char:
            return self.char if other.takes(self.char) else ""
        if other.char:
            return other.char if self.takes(other.char) else ""
        return next(c for c in "x-_~" if self.takes(c) and other.takes(c))


SEGMENT = Symbol(excluded="./", repeat=True)
ANYTHING = Symbol(repeat=True, optional=True)

Symbols = Sequence[Symbol]
_START = -1


def _follow(symbols: Symbols, state: int) -> Iterable[int]:
    # the states that can come after one; `len(symbols)` is the end
    if state >= 0 and symbols[state].repeat:
        yield state
    for position in range(state + 1, len(symbols)):
        yield position
        if not symbols[position].optional:
            return
    yield len(symbols)


def overlap(first: Symbols, second: Symbols) -> str | None:
    """An address both match (a shortest one), or None if there is none."""
    goal = (len(first), len(second))
    waiting = deque([((_START, _START), "")])
    seen = {(_START, _START)}
    while waiting:
        (one, two), text = waiting.popleft()
        for pair in itertools.product(_follow(first, one), _follow(second, two)):
            if pair == goal:
                return text
            if pair in seen or pair[0] == goal[0] or pair[1] == goal[1]:
                continue
            char = first[pair[0]].common(second[pair[1]])
            if char:
                seen.add(pair)
                waiting.append((pair, text + char))
    return None


def ambiguous(symbols: Symbols) -> str | None:
    """An address that the pattern matches in two ways, or None.

    Two ways differ somewhere: look for two walks over one text that part and both arrive.
    """
    end = len(symbols)
    waiting = deque([(_START, _START, False, "")])
    seen = {(_START, _START, False)}
    while waiting:
        one, two, parted, text = waiting.popleft()
        for left, right in itertools.product(_follow(symbols, one), _follow(symbols, two)):
            if left == right == end:
                if parted:
                    return text
                continue
            if end in (left, right):
                continue
            state = (left, right, parted or left != right)
            char = symbols[left].common(symbols[right])
            if char and state not in seen:
                seen.add(state)
                waiting.append((*state, text + char))
    return None


def covers(wide: Symbols, narrow: Symbols) -> bool:
    """Whether `wide` matches everything that `narrow` does. Says no when that would take too long to find out."""
    named = {s.char for s in (*wide, *narrow) if s.char} | set("./")
    # every character that no pattern names behaves like this one
    other = next(c for c in map(chr, range(0x21, 0x110000)) if c not in named)
    alphabet = (*sorted(named), other)
    start = (_START, frozenset((_START,)))
    waiting = deque([start])
    seen = {start}
    while waiting:
        state, group = waiting.popleft()
        nexts = {n for member in group for n in _follow(wide, member)}
        for following in _follow(narrow, state):
            if following == len(narrow):
                if len(wide) not in nexts:
                    return False
                continue
            for char in alphabet:
                if not narrow[following].takes(char):
                    continue
                pair = (following, frozenset(n for n in nexts if n < len(wide) and wide[n].takes(char)))
                if not pair[1]:
                    return False
                if pair not in seen:
                    if len(seen) >= _BOUND:
                        return False
                    seen.add(pair)
                    waiting.append(pair)
    return True
