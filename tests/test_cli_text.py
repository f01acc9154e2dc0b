"""Nothing that a model or a far side wrote acts on the terminal, and an escape can't be imitated."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundloop.actors.cli_scrub import scrubbed
from boundloop.actors.cli_text import (
    machine_json,
    quoted,
    safe_json,
    safe_lines,
    safe_text,
    shown_json,
    span,
    table,
    when,
)

HOSTILE = {
    "\x1b[2J": "\\x1b[2J",
    "\x9b31m": "\\x9b31m",
    "\x07\x08\x7f\x00": "\\x07\\x08\\x7f\\x00",
    "a\r\nb\tc": "a\\r\\nb\\tc",
    "\u202egpj.exe": "\\u202egpj.exe",
    "\u2066x\u2069": "\\u2066x\\u2069",
    "a\u200b\u200d\ufeffb": "a\\u200b\\u200d\\ufeffb",
    "a\u00adb": "a\\xadb",
    "\u2028\u2029\x85": "\\u2028\\u2029\\x85",
    "\U000e0041\U000e007f": "\\U000e0041\\U000e007f",
    "\u3164\u115f\u2800": "\\u3164\\u115f\\u2800",
    "x\ufe0f\U000e0101": "x\\ufe0f\\U000e0101",
    "\ud83d": "\\ud83d",
    "\\u202e": "\\\\u202e",
    "é 漢字 ñ": "é 漢字 ñ",
}


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items(), ids=ascii)
def test_what_would_act_is_written_out(text: str, shown: str) -> None:
    assert safe_text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "approved by os:me@host.example, at 12:30:05",
        "sqlite:///home/me@corp/a:b.db: there is no such file",
        "memory:// sqlite:///file and postgresql://host/database",
        "(postgresql://app@h:5432/runs?sslcert=/a@b/c)",
        "postgresql://app:***@h/runs, postgresql://*** and ***: refused",
        "https://example.com/@scope/page and http://127.0.0.1:8080/v1",
        "postgres:5432 and 127.0.0.1:5432 refused the connection",
        "image: repo@sha256:abc  in\ta line",
        "write %40 for @, %3A for :, %2F for /",
        "there is no password: PGPASSWORD gives one",
        "",
    ],
)
def test_a_text_without_a_password_is_printed_as_it_is(text: str) -> None:
    assert scrubbed(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no run 'postgresql://app:s3cret@h/runs'.", "no run 'postgresql://app:***@h/runs'."),
        ("a postgresql://app:s3 cret@h/runs, b", "a postgresql://***, b"),
        ("a POSTGRES:app:s3cret@h b", "a *** b"),
        ("a redis://:s3cret@h/1 b", "a redis://*** b"),
        ("a sqlite://app:s3cret@h/runs b", "a sqlite://*** b"),
        ("x=mysql://app%3As3cret%40h", "x=mysql://***"),
        ("a app:s3cret@h/runs b", "a *** b"),
        ("a app%3As3cret%40h%2Fruns b", "a *** b"),
        ("host=h password=s3cret dbname=x", "host=h password=*** dbname=x"),
        ("PGPASSWORD=s3cret, sslpassword%3Ds3cret", "PGPASSWORD=***, sslpassword%3D***"),
        (r"'host=h pwd = \'s3 cret\' x'", "'host=h pwd = ***'"),
    ],
)
def test_a_password_in_a_text_is_not_printed(text: str, shown: str) -> None:
    assert scrubbed(text) == shown


@pytest.mark.parametrize(
    "part", ["a:", "postgres", "postgresql://a:b ", "password", "password='", "'", ":", "%3A"]
)
def test_a_long_text_is_looked_through_in_a_moment(part: str) -> None:
    """Quadratic, this would take minutes."""
    assert len(scrubbed(f"{part * (400_000 // len(part))} postgresql://app:s3cret@h/runs")) < 401_000


def harmless(text: str) -> bool:
    return all(
        char == " " or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs")
        for char in text
    )


ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=40)


@given(ANY_TEXT)
def test_any_text_becomes_one_harmless_line_and_reads_back(text: str) -> None:
    shown = safe_text(text)
    assert harmless(shown)
    assert shown.encode("ascii", "backslashreplace").decode("unicode_escape") == text


@given(ANY_TEXT)
def test_a_quoted_word_is_harmless_and_means_itself_in_a_shell(text: str) -> None:
    assert harmless(quoted(text))


@pytest.mark.parametrize(
    "text",
    [
        "r1",
        "my runs/a.db:spec",
        "it's",
        "a\\b",
        "$(rm x)",
        "a\nb",
        "\x1b[2J'\\",
        "\u202eü",
        "\U000e0100",
        "ü",
    ],
)
def test_a_shell_reads_a_quoted_word_as_it_was(text: str) -> None:
    command = f"printf %s {quoted(text)}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, check=True, timeout=60, env={"LC_ALL": "C.UTF-8"}
    )
    assert done.stdout.decode() == text


@given(ANY_TEXT)
def test_shown_json_stays_json(text: str) -> None:
    value = {"a": [text, 1, None], text: True}
    assert harmless(safe_json(value))
    assert json.loads(safe_json(value)) == value
    assert machine_json(value).isascii()
    assert machine_json(value).isprintable()
    assert json.loads(machine_json(value)) == value


def test_every_code_point_is_either_shown_or_escaped() -> None:
    """All planes with characters, and the edges of those without."""
    planes = [range(0x20000), range(0x2FA00, 0x30000), range(0xE0000, 0xE0200), range(0x10FFF0, 0x110000)]
    for plane in planes:
        assert harmless(safe_text("".join(map(chr, plane))))
    assert planes[-1].stop == sys.maxunicode + 1


def test_marks_that_pile_up_are_cut_from_their_letter() -> None:
    shown = safe_text("a" + "\u0301" * 50)
    assert shown.count("\u0301") == 4
    assert shown.count("\\u0301") == 46


def test_only_plain_newlines_part_lines() -> None:
    assert safe_lines("a\nb\rc\x0bd\u2028e") == ["a", "b\\rc\\x0bd\\u2028e"]


def test_bytes_that_are_no_json_are_shown_as_text() -> None:
    assert shown_json(b"{bad\xff") == "{bad\\xff"
    assert shown_json(b"[" * 100_000) == "[" * 100_000


def test_a_long_cell_is_cut_after_it_was_escaped() -> None:
    [_, line] = table(("a", "b"), [("\u202e" * 50, "x" * 500)])
    first, _, second = line.partition("  ")
    assert len(first) == 60
    assert first.endswith("...")
    assert len(second) == 160


@pytest.mark.parametrize(
    ("at_ms", "shown"),
    [(0, ""), (1_700_000_000_123, "2023-11-14 22:13:20.123Z"), (2**80, f"{2**80} ms")],
)
def test_times_are_utc_and_absurd_ones_are_numbers(at_ms: int, shown: str) -> None:
    assert when(at_ms) == shown


def test_durations() -> None:
    assert [span(ms) for ms in (-5, 0, 59_999, 60_000, 3_723_000)] == [
        "0.000s",
        "0.000s",
        "59.999s",
        "1m00s",
        "1h02m03s",
    ]
