"""What a PostgreSQL store's address may say, and that its password is shown nowhere."""

from __future__ import annotations

import pytest

from boundloop.eventstore.location import parse_url, shown_url, url_to_type
from boundloop.eventstore.postgres_url import parse_postgres_url
from boundloop.runtime.errors import StoreUrlError


def test_an_address_is_handed_to_the_driver_without_what_is_ours() -> None:
    place = parse_postgres_url(
        "postgres://app:s%40x@h1:5432,h2/runs?schema=mine&sslmode=verify-full&sslrootcert=/a/b"
    )
    assert place.dsn == "postgresql://app:s%40x@h1:5432,h2/runs?sslmode=verify-full&sslrootcert=/a/b"
    assert place.schema == "mine"
    assert (
        place.shown == "postgres://app:***@h1:5432,h2/runs?schema=mine&sslmode=verify-full&sslrootcert=/a/b"
    )
    assert parse_postgres_url("postgresql:///runs?host=/run/pg").schema == "boundloop"
    assert parse_url("postgresql://h/runs").kind == "postgres"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h",
        "postgresql://h/",
        "postgresql://h/runs?synchronous_commit=off",
        "postgresql://h/runs?target_session_attrs=any",
        "postgresql://h/runs?schema=a&schema=b",
        "postgresql://h/runs?schema=A",
        'postgresql://h/runs?schema=a"b',
        "postgresql://h/runs?schema",
        "postgresql://h/runs#x",
        "postgresql://app:s3cret@h/runs?nope=1",
        "postgresql://app@h/runs?password=s3cret",
        "postgresql+asyncpg://app:s3cret@h/runs",
        "postgresq://app:s3cret@h/runs",
        "postgresql:app:s3cret@h/runs",
        "postgresql://app:s3cret@h:port/runs",
        "postgresql://app:s3cret@h:0/runs",
        "postgresql://app:/s3cret@h/runs",
        "postgresql://app:1/s3cret@h/runs",
        "postgresql://app:1?s3cret=1@h/runs",
        "postgresql://app:1#s3cret@h/runs",
        "postgresql://app:@s3cret@h/runs",
    ],
)
def test_an_address_that_says_more_or_less_is_refused(url: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        parse_url(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://app:s3cret@h/runs", "postgresql://app:***@h/runs"),
        ("postgresql://app:s3/c?r#e@t@h/runs", "postgresql://app:***@h/runs"),
        ("postgresql://app@h/runs", "postgresql://app@h/runs"),
        ("postgresql:///runs?host=/run/pg", "postgresql:///runs?host=/run/pg"),
        ("postgresql://h/runs?schema=a@b", "postgresql://h/runs?schema=a@b"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("runs.db", "runs.db"),
        ("postgresql+asyncpg://app:s3cret@h/runs", "postgresql+asyncpg://app:***@h/runs"),
        ("mysql:app:s3cret@h/runs", "mysql:app:***@h/runs"),
        ("postgresql://app@h/runs?password=s3cret&schema=x", "postgresql://app@h/runs?password=***&schema=x"),
        ("pg://h/runs?passfile=s3cret#f", "pg://h/runs?passfile=***#f"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    ("url", "typed"),
    [
        ("postgresql://app:s3cret@h:5432/runs?schema=x", "postgresql://app@h:5432/runs?schema=x"),
        ("postgresql://app@h/runs?password=s3cret", "postgresql://app@h/runs"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("memory://", "memory://"),
    ],
)
def test_a_command_to_paste_says_where_and_not_the_password(url: str, typed: str) -> None:
    assert url_to_type(url) == typed


@pytest.mark.parametrize(
    "url", ["postgresql://user:s3cr\u2100t@host/db", "postgresql://user:se[cret@host/db"]
)
def test_a_url_that_cant_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(StoreUrlError) as refused:
        parse_postgres_url(url)
    assert "cr" not in str(refused.value)
    assert refused.value.__suppress_context__
