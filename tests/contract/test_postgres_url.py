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
        ("postgresql://app:s3cret@h1:1,h2:2/runs?schema=x", "postgresql://app:***@h1:1,h2:2/runs?schema=x"),
        ("postgres://app:s3%2Fcret@[::1]:5432/runs", "postgres://app:***@[::1]:5432/runs"),
        ("postgresql://app:s3cret@h/runs?sslcert=/a@b/c", "postgresql://app:***@h/runs?sslcert=/a@b/c"),
        ("postgresql://app@h/runs", "postgresql://app@h/runs"),
        ("postgresql://h:/runs", "postgresql://h:/runs"),
        ("postgresql:///runs?host=/run/p:g@x", "postgresql:///runs?host=/run/p:g@x"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("runs.db", "runs.db"),
        ("mysql://x", "mysql://x"),
    ],
)
def test_of_an_address_that_is_taken_only_the_password_is_hidden(url: str, shown: str) -> None:
    assert shown_url(url) == shown


WRONG = [
    "postgresql+asyncpg://app:s3cret@h/runs",
    "POSTGRESQ://app:s3cret@h/runs",
    "mysql:app:s3cret@h/runs",
    "postgresql:///app:s3cret@h/runs",
    "postgresql:/app:s3cret@h/runs",
    "postgresql//app:s3cret@h/runs",
    "app:s3cret@h/runs",
    "host=h user=app password=s3cret dbname=runs",
    "postgresql://dom/app:s3cret@h/runs",
    "postgresql://app?x:s3cret@h/runs",
    "postgresql://app:p@real/s3cret@h/runs",
    "postgresql://app:s3/c?r#e@t@h/runs",
    "postgresql://app@h/runs?password=s3cret",
    "postgresql://app@h/runs?password=a&s3cret",
    "postgresql://app@h/runs?password=a#s3cret",
    "postgresql://app@h/runs?s3cret=a",
    "postgresql://app:s3cret/runs",
    "postgresql://app:s3cret%40h/runs",
    "postgresql://app:p@h:s3cret/runs",
    "postgresql://app@h/runs?host=app:s3cret@127.0.0.1",
    "postgresql://app@h/runs?port=s3cret",
    "postgresql://app:s3cret@h1,,h2/runs",
    "postgresql://app:s3cret\u2100@h/runs",
    "postgresql://app:[s3cret]@h/runs",
    "postgresql://app:s3cret\t@h/runs",
    "postgresql://app:\ns3cret@h/runs",
    "postgresql://app:s3cret@h/ru\rns",
    " postgresql://app:s3cret@h/runs",
]


@pytest.mark.parametrize("url", WRONG)
def test_nothing_of_a_password_is_shown_however_wrong_the_address_is(url: str) -> None:
    assert "s3cret" not in shown_url(url)
    assert "s3cret" not in url_to_type(url)
    with pytest.raises(StoreUrlError) as refused:
        parse_url(url)
    error: BaseException | None = refused.value
    while error is not None:
        assert "s3cret" not in f"{error} {error!r}"
        error = error.__context__


@pytest.mark.parametrize(
    ("url", "typed"),
    [
        ("postgresql://app:s3cret@h:5432/runs?schema=x", "postgresql://app@h:5432/runs?schema=x"),
        (
            "postgresql://app:p@prod/db?sslcert=/home/me@corp/db",
            "postgresql://app@prod/db?sslcert=/home/me@corp/db",
        ),
        (
            "postgresql://app:p@h/db?sche%6Da=x&%73slmode=require",
            "postgresql://app@h/db?sche%6Da=x&%73slmode=require",
        ),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("memory://", "memory://"),
    ],
)
def test_a_command_to_paste_says_where_and_not_the_password(url: str, typed: str) -> None:
    assert url_to_type(url) == typed
    if url.startswith("postgresql"):
        there, here = parse_postgres_url(typed), parse_postgres_url(url)
        assert (there.dsn, there.schema) == (
            here.dsn.replace(":s3cret@", "@").replace(":p@", "@"),
            here.schema,
        )
        assert "s3cret" not in repr(here)
