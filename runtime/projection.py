"""``model_result``: all that a model sees of a call. The protected record never leaves.

The projection is canonical JSON with sorted keys: ``as_of`` (the run's snapshot, of a tool that reads at it), ``code``,
``data``, ``handle``, ``message``, ``observed_at`` (ms: what the tool says, else store time), ``replayed``, ``source_version``, ``status``,
``truncated``, ``trust``. Result data is marked untrusted unless its tool declares that the host vouches for it: it is something a
far side said, never an instruction and never control. What a person answered to a question is a ``person``'s word.
"""

from __future__ import annotations

from .canonical import JSON, canonical_bytes, decode_canonical

MESSAGE_CHARS_MAX = 512
CANNOT_TEXT = "nobody can answer this"


def ok_content(
    result: bytes,
    observed_at_ms: int,
    *,
    truncated: bool,
    source_version: str = "",
    as_of: str = "",
    trusted: bool = False,
    handle: str = "",
) -> bytes:
    """A success. ``result`` is canonical JSON already, so it is put in place as it is. ``handle``: of a truncated one, under
    which ``read_result`` reads the whole."""
    first = b'"as_of":%s,' % canonical_bytes(as_of) if as_of else b""
    version = b',"source_version":%s' % canonical_bytes(source_version) if source_version else b""
    middle = b',"truncated":true' if truncated else b""
    named = b',"handle":"%s"' % handle.encode() if handle else b""
    return b'{%s"data":%s%s,"observed_at":%d%s,"status":"ok"%s,"trust":%s}' % (
        first,
        result,
        named,
        observed_at_ms,
        version,
        middle,
        b'"trusted"' if trusted else b'"untrusted"',
    )


def answer_content(result: bytes, answered_at_ms: int) -> bytes:
    """A person's answer to a question: what a person said, to be trusted as the run's other user messages are."""
    return b'{"data":%s,"observed_at":%d,"status":"ok","trust":"person"}' % (result, answered_at_ms)


def replayed_content(
    result: bytes, effect_at_ms: int, *, arguments_differ: bool, trusted: bool = False
) -> bytes:
    """The recorded result of an effect that happened before. Tells the model that nothing ran now."""
    note = "this effect had already happened; its recorded result is returned and nothing ran now"
    if arguments_differ:
        note += "; incidental arguments differed and were not applied"
    return b'{"data":%s,"message":%s,"observed_at":%d,"replayed":true,"status":"ok","trust":%s}' % (
        result,
        canonical_bytes(note),
        effect_at_ms,
        b'"trusted"' if trusted else b'"untrusted"',
    )


def error_content(
    code: str, message: str, *, path: str = "", retryable: bool = False, data: bytes | None = None
) -> bytes:
    """A refusal, failure or unknown outcome. The message is ours or a tool's safe text, bounded. ``data`` is canonical JSON:
    what an agent that failed had done by then."""
    body: dict[str, JSON] = {"code": code, "message": message[:MESSAGE_CHARS_MAX], "status": "error"}
    if path:
        body["path"] = path[:MESSAGE_CHARS_MAX]
    if retryable:
        body["retryable"] = True
    if data is not None:
        body["data"], body["trust"] = decode_canonical(data), "untrusted"
    return canonical_bytes(body)
