"""Where a value may come from: which arguments and answers must hold what earlier results hold, and the index of those.

Judged on the record, never on a text. What some tool or goal of the run declares decides which values are indexed: 16 bytes a
value, so each look-up costs the same however long the run is, and a run that declares nothing pays nothing. Whatever the
index has no room for was not seen: the check then says no, never yes.

A source is written ``results`` (any value in a result of any tool but agents, whose answers are a model's words), ``TOOL``
(any value in a result of that tool), ``TOOL.field.field`` (values there; lists are passed through), ``given`` or
``given.field`` (the run's typed inputs, which its caller stands for). Values are texts and numbers, compared as canonical JSON;
names of members, ``true``, ``false`` and ``null`` are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Final, cast

import msgspec

from .canonical import JSON, canonical_bytes, decode_canonical
from .errors import DeclarationError
from .tool_definition import ToolDefinition, is_tool_name

RESULTS: Final = "results"
GIVEN: Final = "given"
ANYWHERE: Final = (RESULTS, GIVEN)
"""Where the value of an argument may come from unless its sources are named."""

DIGEST_BYTES: Final = 16
VALUES_OF_RESULT_MAX: Final = 1_024
"""Values of one result that are indexed, the first ones; for the digests of a large result that is 16 KiB in its event."""

PLACES_OF_RESULT_MAX: Final = 65_536
"""Places of one result that are looked at for values, over all that is asked of it."""

INDEXED_BYTES_MAX: Final = 16 * 1_024 * 1_024
"""A result larger than this isn't indexed: to parse it alone would take a good part of a host's lease."""

CUT: Final = bytes(DIGEST_BYTES)
"""Behind the digests of a large result in its event where some were left out; no value has this digest."""

VALUES_OF_RUN_MAX: Final = 32_768
SOURCES_MAX: Final = 16
PATH_MAX: Final = 8
FIELD_CHARS_MAX: Final = 64
GIVEN_BYTES_MAX: Final = 65_536

Sources = dict[str, tuple[str, ...]]


class Seen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A bound, successful result that holds indexed values. ``observed_at_ms`` and ``version`` are those of its source."""

    call: str
    tool: str
    observed_at_ms: int
    version: str = ""


class Watched:
    """Which values of which results are indexed, from all that a run's tools and goal declare."""

    __slots__ = ("_anywhere", "_of_tool")

    def __init__(self, declared: Iterable[Sources]) -> None:
        sources = dict.fromkeys(source for one in declared for named in one.values() for source in named)
        self._anywhere = RESULTS in sources
        self._of_tool: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
        for source in sources:
            if source != RESULTS:
                tool, *path = source.split(".")
                self._of_tool.setdefault(tool, []).append((source, tuple(path)))

    def __bool__(self) -> bool:
        return self._anywhere or bool(self._of_tool)

    def digests(self, tool: str, *, is_agent: bool, result: bytes) -> tuple[list[bytes], bool]:
        """The digests of a result's values that are asked for, each once, and whether some were left out. ``result`` is canonical
        JSON, the whole of it. What it costs is bounded whatever a tool returns, since a host's loop waits for it."""
        asked = list(self._of_tool.get(tool, ()))
        if self._anywhere and not is_agent and tool != GIVEN:
            asked.append((RESULTS, ()))
        if not asked:
            return [], False
        if len(result) > INDEXED_BYTES_MAX:
            return [], True
        whole = decode_canonical(result)
        found: list[bytes] = []
        looked_at = 0
        for source, path in asked:
            known: set[str | int | float] = set()
            for value in _places(whole, path):
                looked_at += 1
                if looked_at > PLACES_OF_RESULT_MAX:
                    return found, True
                if not isinstance(value, str | int | float) or value in known:
                    continue
                if len(found) == VALUES_OF_RESULT_MAX:
                    return found, True
                known.add(value)
                found.append(digest(source, value))
        return found, False


def digest(source: str, value: JSON) -> bytes:
    """What stands for a value of a source in the index."""
    return blake2b(source.encode() + b"\0" + canonical_bytes(value), digest_size=DIGEST_BYTES).digest()


def watched_by(tools: Iterable[ToolDefinition], more: Sources) -> Watched:
    """What is asked of the results of a run with these tools, and ``more`` by its goal."""
    return Watched((*(tool.from_results for tool in tools if tool.from_results and tool.offered), more))


def split_digests(joined: bytes) -> list[bytes]:
    """The digests that an event holds one behind the other."""
    return [joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES)]


def joined_digests(found: list[bytes], left_out: bool) -> bytes:
    """How an event holds them."""
    return b"".join((*found, CUT) if left_out else found)


def values_at(value: JSON, path: str) -> Iterator[JSON]:
    """The texts, numbers and objects at a dotted path, those in lists too."""
    places = _places(value, tuple(path.split(".")), into_objects=False)
    return (one for one in places if one is not None)


def _places(whole: JSON, path: tuple[str, ...], *, into_objects: bool = True) -> Iterator[JSON]:
    """Each place that is looked at on the way to a path and from there on, in order, however deep: the text or number there,
    None where none is. From the path on down to texts and numbers, or down to objects alone, which are given then. Lists are
    passed through."""
    stack: list[tuple[Iterator[JSON], int]] = [(iter((whole,)), 0)]
    while stack:
        places, at = stack[-1]
        for one in places:
            inside: Iterator[JSON] | None = None
            if isinstance(one, list):
                inside = iter(one)
            elif isinstance(one, dict) and at < len(path):
                inside = iter((one[path[at]],)) if path[at] in one else None
            elif isinstance(one, dict) and into_objects:
                inside = iter(one.values())
            elif at == len(path) and not isinstance(one, bool):
                yield one
                continue
            yield None
            if inside is not None:
                stack.append((inside, at + (isinstance(one, dict) and at < len(path))))
                break
        else:
            stack.pop()


# --- declarations --------------------------------------------------------------------------------------------------


def sources_from(given: object, path: str, *, otherwise: tuple[str, ...] = ANYWHERE) -> Sources:
    """What is declared as data: names, each from anywhere, or a mapping from a name to its source or sources. Raises
    ``DeclarationError``."""
    if isinstance(given, Mapping):
        items = cast("Mapping[object, object]", given).items()
        return {_name(name, path): _sources(named, path) for name, named in items}
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise DeclarationError("from_results", "several names, or a mapping from names to sources", path=path)
    return {_name(name, path): otherwise for name in cast("Iterable[object]", given)}


def _name(name: object, path: str) -> str:
    if not isinstance(name, str) or not name:
        raise DeclarationError("from_results", "names are texts", path=path)
    return name


def _sources(given: object, path: str) -> tuple[str, ...]:
    if isinstance(given, str):
        return (_source(given, path),)
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise DeclarationError("from_results", "a source, or several", path=path)
    named = tuple(dict.fromkeys(_source(one, path) for one in cast("Iterable[object]", given)))
    if not 1 <= len(named) <= SOURCES_MAX:
        raise DeclarationError("from_results", f"1 to {SOURCES_MAX} sources", path=path)
    return named


def _source(given: object, path: str) -> str:
    if isinstance(given, str):
        tool, *fields = given.split(".")
        plain = all(0 < len(field) <= FIELD_CHARS_MAX and field.isprintable() for field in fields)
        if is_tool_name(tool) and plain and len(fields) <= PATH_MAX and not (tool == RESULTS and fields):
            return given
    raise DeclarationError(
        "from_results", 'write "results", "TOOL", "TOOL.field", "given" or "given.field"', path=path
    )


def tools_named(sources: Sources) -> set[str]:
    """The tools whose results are named as sources."""
    return {one.partition(".")[0] for named in sources.values() for one in named}.difference(ANYWHERE)


def given_bytes(given: object) -> bytes:
    """The run's typed inputs as canonical JSON; empty for none. Raises ``DeclarationError``."""
    if given is None or given == {}:
        return b""
    if not isinstance(given, dict):
        raise DeclarationError("option_type", "must be a dict of JSON values", path="given")
    try:
        encoded = canonical_bytes(cast(JSON, given))
    except Exception as error:
        raise DeclarationError("given_value", "must be JSON", path="given") from error
    if len(encoded) > GIVEN_BYTES_MAX:
        raise DeclarationError(
            "option_size", f"{len(encoded)} bytes, at most {GIVEN_BYTES_MAX}", path="given"
        )
    if sum(value is not None for value in _places(cast(JSON, given), ())) > VALUES_OF_RESULT_MAX:
        raise DeclarationError("option_size", f"at most {VALUES_OF_RESULT_MAX} values", path="given")
    return encoded
