"""``decode``: what a provider's answer means here, for anybody who debugs one. No store, no network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import click

from ..runtime.errors import CallerError, DeclarationError
from .cli_output import FAILED, FORMATS, OK, Format, Output

if TYPE_CHECKING:
    from ..adapters.decoding import TurnDecoder
    from ..runtime.model import ModelTurn

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
COLUMNS: Final = (
    "file",
    "outcome",
    "executable",
    "calls",
    "text",
    "finish_raw",
    "usage",
    "response_id",
    "refusal",
    "error",
)


@click.command()
@click.argument("family")
@click.argument("file", nargs=-1, required=True, type=click.File("rb", lazy=True))
@click.option(
    "--status",
    type=click.IntRange(100, 599),
    default=200,
    show_default=True,
    help="The HTTP status that the bytes came with.",
)
@click.option(
    "--header", "headers", multiple=True, metavar="NAME:VALUE", help="A header that came with them."
)
@click.option("--store", "store_url", metavar="URL", hidden=True, help="Not looked at.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(FORMATS),
    default="jsonl",
    show_default=True,
    help="How to print.",
)
def decode(
    family: str,
    file: tuple[Any, ...],
    status: int,
    headers: tuple[str, ...],
    store_url: str | None,
    output: str,
) -> int:
    """Decode answers of a model's API, each a file with a body or a stream of events as it came; - is standard input.

    FAMILY is openai_responses, openai_chat (compatible servers too), anthropic, gemini or gemini_interactions. One JSON
    line a file, with the normalised turn; nothing in it was run. Exits 1 if any is a provider's error, or no whole answer.
    """
    from ..adapters.families import family_named

    named = family_named(family)
    known = dict(_header(text) for text in headers)
    out = Output(cast(Format, output))
    rows: list[dict[str, Any]] = []
    failed = False
    for one in file:
        row = _row(named, one.name, _read(one), status, known)
        failed = failed or row["error"] is not None
        if out.form == "jsonl":
            out.thing(row)
        else:
            rows.append(row)
    if out.form != "jsonl":
        out.rows(COLUMNS, rows)
    return FAILED if failed else OK


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise DeclarationError("header", "NAME:VALUE", path=text[:64])
    return name.strip().lower(), value.strip()


def _read(file: Any) -> bytes:
    try:
        data: bytes = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise DeclarationError("file", error.strerror or "can't be read", path=str(file.name)) from error
    if len(data) > FILE_BYTES_MAX:
        raise DeclarationError("file", f"over {FILE_BYTES_MAX} bytes", path=str(file.name))
    return data


def _row(family: str, name: str, data: bytes, status: int, headers: dict[str, str]) -> dict[str, Any]:
    from ..adapters.answer_draft import Exchange
    from ..adapters.families import decoder_of

    decoder = decoder_of(family, Exchange(status, headers), answer_bytes_max=FILE_BYTES_MAX)
    decoder.feed(data)
    turn = decoder.end()
    return {"file": name, **described(turn, decoder)}


def described(turn: ModelTurn, decoder: TurnDecoder) -> dict[str, Any]:
    """A turn as ``decode`` prints it."""
    from ..runtime.model import FINISH

    refusal = decoder.refusal
    executable = FINISH[turn.finish].executable and all(_is_object(call.arguments) for call in turn.calls)
    return {
        "outcome": turn.finish,
        "executable": executable,
        "calls": [
            {
                "provider_call_id": call.provider_call_id,
                "name": call.name,
                "arguments": call.arguments.decode("utf-8", "backslashreplace"),
            }
            for call in turn.calls
        ],
        "text": "" if turn.finish == "refused" and turn.text == refusal else turn.text,
        "finish_raw": turn.finish_raw,
        "usage": turn.usage,
        "response_id": turn.response_id,
        "served_model": turn.served_model,
        "refusal": refusal or None,
        "code": turn.error_code or None,
        "hosted": list(turn.hosted),
        "unknown": decoder.unknown,
        "error": None
        if decoder.judged and turn.finish != "provider_error"
        else {
            "code": turn.error_code,
            "message": turn.safe_message,
            "retryable": turn.retryable,
            "retry_after_s": turn.retry_after_ms / 1_000,
        },
    }


def _is_object(arguments: bytes) -> bool:
    """Whether the ladder's parser takes them; none at all stand for an empty object where the tool takes one."""
    from ..runtime.strict_json import parse_object

    if not arguments:
        return True
    try:
        parse_object(arguments)
    except CallerError:
        return False
    return True
