"""Arguments of a call that come as values at JSON paths, one after the other, and the object that they make.

A text may come in pieces at one path while more is announced; any other value is there once. What comes twice, in a place
that is no place, or out of order makes no object: the call is none then.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final, cast

import msgspec

from ..runtime.canonical import JSON
from .answer_draft import Misread

PATH_CHARS_MAX: Final = 4_096
PATH_STEPS_MAX: Final = 48

_step = re.compile(
    r"""\.([^.\[\]'"\s]+)|\[([0-9]{1,9})\]|\['((?:[^'\\]|\\.)*+)'\]|\["((?:[^"\\]|\\.)*+)"\]"""
)
_escaped = re.compile(r"\\(.)")


class _Text:
    """A text as far as it came; ``open`` while more of it is announced."""

    __slots__ = ("open", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.open = True


_Node = object
"""A dict, a list, a ``_Text`` or a plain value."""


class PartialArguments:
    """Takes values in order; ``written`` is the object's text."""

    def __init__(self) -> None:
        self._root: dict[str, _Node] = {}
        self._open: _Text | None = None
        self._open_path = ""

    @property
    def is_whole(self) -> bool:
        """No text is announced to go on."""
        return self._open is None

    def put(self, path: str, value: JSON, *, goes_on: bool) -> None:
        """Put a value at a path; ``goes_on``: more of this text follows. Raises ``Misread``."""
        if self._open is not None:
            if path != self._open_path or not isinstance(value, str):
                raise _bad("a text breaks off within the arguments")
            self._open.pieces.append(value)
            if not goes_on:
                self._open = None
            return
        parent, last = self._place(_steps(path))
        node: _Node = value
        if isinstance(value, str) and goes_on:
            node = text = _Text()
            text.pieces.append(value)
            self._open, self._open_path = text, path
        _add(parent, last, node)

    def written(self) -> bytes:
        """The object as JSON."""
        return msgspec.json.encode(_plain(self._root))

    def _place(self, steps: list[str | int]) -> tuple[_Node, str | int]:
        parent: _Node = self._root
        for step, following in pairwise(steps):
            child = _child(parent, step)
            if child is None:
                made: _Node = [] if isinstance(following, int) else {}
                _add(parent, step, made)
                child = made
            parent = child
        return parent, steps[-1]


def _steps(path: str) -> list[str | int]:
    if not path.startswith("$") or len(path) > PATH_CHARS_MAX:
        raise _bad("a path is none")
    steps: list[str | int] = []
    place = 1
    while place < len(path):
        found = _step.match(path, place)
        if found is None or len(steps) >= PATH_STEPS_MAX:
            raise _bad("a path is none")
        name, index, single, double = found.groups()
        if index is not None:
            steps.append(int(index))
        elif name is not None:
            steps.append(name)
        else:
            steps.append(_escaped.sub(r"\1", single if single is not None else double))
        place = found.end()
    if not steps or isinstance(steps[0], int):
        raise _bad("a path is none")
    return steps


def _child(parent: _Node, step: str | int) -> _Node | None:
    if isinstance(parent, dict) and isinstance(step, str):
        return cast("dict[str, _Node]", parent).get(step)
    if isinstance(parent, list) and isinstance(step, int):
        found = cast("list[_Node]", parent)
        return found[step] if step < len(found) else None
    raise _bad("a path leads through a plain value")


def _add(parent: _Node, step: str | int, node: _Node) -> None:
    if isinstance(parent, dict) and isinstance(step, str):
        members = cast("dict[str, _Node]", parent)
        if step in members:
            raise _bad("a value is there twice")
        members[step] = node
    elif isinstance(parent, list) and isinstance(step, int):
        found = cast("list[_Node]", parent)
        if step != len(found):
            raise _bad("a list is out of order")
        found.append(node)
    else:
        raise _bad("a path leads through a plain value")


def _plain(node: _Node) -> JSON:
    if isinstance(node, _Text):
        return "".join(node.pieces)
    if isinstance(node, dict):
        return {name: _plain(child) for name, child in cast("dict[str, _Node]", node).items()}
    if isinstance(node, list):
        return [_plain(child) for child in cast("list[_Node]", node)]
    return cast(JSON, node)


def _bad(message: str) -> Misread:
    return Misread("partial_arguments", message, model=True)
