"""What a PostgreSQL store's address may say, and that its password is shown nowhere."""

from __future__ import annotations

import pytest

from boundloop.eventstore.location import parse_url, shown_url
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
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    "url", ["postgresql://user:s3cr\u2100t@host/db", "postgresql://user:se[cret@host/db"]
)
def test_a_url_that_cant_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(StoreUrlError) as refused:
        parse_postgres_url(url)
    assert "cr" not in str(refused.value)
    assert refused.value.__suppress_context__
