"""What a PostgreSQL store's address may say, and that its password is shown nowhere."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit

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
    assert parse_postgres_url("postgresql:///runs?schema=pg").schema == "pg"
    assert parse_postgres_url("postgresql:///runs?schema=_1").schema == "_1"
    assert parse_url("postgresql://h/runs").kind == "postgres"


@pytest.mark.parametrize(
    ("url", "hosts", "root"),
    [
        ("postgresql://app@h/runs?sslrootcert=/etc/ssl/a+b.pem", ["h"], "/etc/ssl/a+b.pem"),
        ("postgresql://app@h/runs?sslrootcert=/etc/ssl/a%2Bb%20c.pem", ["h"], "/etc/ssl/a+b c.pem"),
        ("postgresql:///runs?host=/srv/c++/run", ["/srv/c++/run"], ""),
        ("postgresql://app@%2Fsrv%2Fc++%2Frun/runs", ["/srv/c++/run"], ""),
        ("postgresql:///runs?host=/cloudsql/p:r:i", ["/cloudsql/p:r:i"], ""),
        ("postgresql://app:pw@%2Fcloudsql%2Fp%3Ar%3Ai/runs", ["/cloudsql/p:r:i"], ""),
        ("postgresql://%2fcloudsql%2fp%3ar%3ai:5433,h/runs", ["/cloudsql/p:r:i", "h"], ""),
    ],
)
def test_the_driver_is_given_the_folder_and_the_file_that_libpq_reads(
    url: str, hosts: list[str], root: str
) -> None:
    """A plus is no space there, and an escaped folder may hold a colon as one in ``host=`` may."""
    driver = urlsplit(parse_postgres_url(url).dsn)
    query = parse_qs(driver.query, strict_parsing=True) if driver.query else {}
    before = [unquote(it.partition(":")[0]) for it in driver.netloc.rpartition("@")[2].split(",")]
    assert query.get("host", before) == hosts
    assert query.get("sslrootcert", [""]) == [root]


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
        "postgresql://h/runs?schema=",
        "postgresql://h/runs?schema=x&",
        "postgresql://h/runs#x",
        "postgresql://h/runs#",
        "postgresql://h/runs?sslmode=bogus",
        "postgresql://h/runs?sslmode=",
        "postgresql://h/runs?sslcert=/a;b",
        "postgresql://h/runs?sslkey=/a%26b",
        "postgresql://h/a:b",
        "postgresql://h/a%3Ab",
        "postgresql://h/runs?host=/run/pg",
        "postgresql://h:5432/runs?port=5433",
        "postgresql://h/runs?host=",
        "postgresql://app@:5433/runs",
        "postgresql://app@:/runs",
        "postgresql://app@h1,/runs",
        "postgresql://app@h%2Ch2/runs",
        "postgresql://app@[::1]5433/runs",
        "postgresql://app@[::1]:/runs",
        "postgresql://app@[::1]:x/runs",
        "postgresql:///runs?host=[::1",
        "postgresql:///runs?host=x[::1]",
        "postgresql:///runs?host=[::1]x:5432",
        "postgresql:///runs?host=[[::1]]",
        "postgresql:///runs?host=/run/pg,h2&port=5433,",
        "postgresql:///runs?host=a,b&port=1,2,3",
        "postgresql:///runs?host=a:5433&port=5432",
        "postgresql:///runs?host=a,,b",
        "postgresql:///runs?host=/run/pg;x",
        "postgresql:///runs?port=1,2",
        "postgresql:///runs?port=65536",
        "postgresql:///runs?port=%D9%A3",
        "postgresql://h:0012345678/runs",
        f"postgresql://h:{'9' * 5000}/runs",
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
    ("url", "says"),
    [
        ("postgresql://app@::1/runs", "an IPv6 address stands in brackets"),
        ("postgresql://app@fe80::1%25eth0/runs", "an IPv6 address stands in brackets"),
        ("postgresql:///runs?host=::1", "an IPv6 address stands in brackets"),
        ("postgresql://app@[::1]5433/runs", "an IPv6 address stands in brackets"),
        ("postgresql://app:p[x@h/runs", "%5B for ["),
        ("postgresql://app:p[x]y@h/runs", "%5B for ["),
        ("postgresql://app:p@x@h/runs", "%40 for @"),
        ("postgresql://dom/app@h/runs", "%40 for @"),
        ("postgresql:///runs?host=app@h", "%40 for @"),
        ("postgresql://dom/app:x/runs", "%3A for :"),
        ("postgresql://app:x:5432/runs", "%3A for :"),
        ("postgresql://h/runs?schema=x&", "an option is name=value"),
        ("postgresql://h/runs?schema", "an option is name=value"),
        ("postgresql://h/runs?=x", "an option is name=value"),
        ("postgresql://app@h/runs\n", "ends with a line's end"),
        ("postgresql://app@h/runs\r\n", "ends with a line's end"),
        ("sqlite:///runs.db\n", "ends with a line's end"),
        ("postgresql://app@h/ru\tns", "a control character"),
        ("postgresql://app@h/r uns", "a space"),
        ("postgresql://app@h/runs?channel_binding=require", "not taken: channel_binding;"),
        ("postgresql://app@h/runs?sslmode=require&channel_binding=require", "leave channel_binding out"),
        ("postgresql://app@h/runs?password=x", "not taken: password;"),
        ("postgresql://app@h/runs?nope=x", "an option isn't known;"),
        ("postgresql://app@h/runs?host=h2", "not in both"),
        ("postgresql://app@:5433/runs", "?port="),
        ("postgresql:///runs?host=a,b&port=1,2,3", "as many ports as hosts"),
        ("postgresql://app@h/runs?sslmode=bogus", "sslmode is one of allow, disable, prefer, require"),
        ("postgresql://app%3Ax@h/runs", "a password may stand there"),
        ("postgresql://app@h", "there is no database name"),
        ("postgresql://app@h/runs?schema=1abc", "begins with a letter or _"),
        ("postgresql://app@h/runs?schema=pg_x", "not with pg_"),
        ("postgresql://app@h/runs?schema=pg_catalog", "not with pg_"),
        (f"postgresql://app@h/runs?schema={'x' * 64}", "at most 63"),
    ],
)
def test_what_refuses_an_address_says_what_is_wrong(url: str, says: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        parse_url(url)
    assert says in caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app%40corp:p@h/runs",
        "postgresql://app@%2Frun%2Fpg:5433/runs",
        "postgresql://app@[fe80::1%25eth0]:5432,[::2]/runs",
        "postgresql://:p@h/runs",
        "postgresql:///runs?host=[::1]:5432",
        "postgresql:///runs?host=/run/pg,h2&port=5433",
        "postgresql:///runs?host=/run/pg,h2&port=5433,00001",
        "postgresql:///runs?port=65535",
        "postgresql://h/runs?sslmode=verify-ca",
        "postgresql://h/a/b?",
        "postgresql://h/my%20runs",
    ],
)
def test_what_the_driver_and_libpq_read_alike_is_taken(url: str) -> None:
    assert parse_url(url).kind == "postgres"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://app:s3cret@h/runs", "postgresql://app:***@h/runs"),
        ("postgresql://app:s3cret@h1:1,h2:2/runs?schema=x", "postgresql://app:***@h1:1,h2:2/runs?schema=x"),
        ("postgres://app:s3%2Fcret@[::1]:5432/runs", "postgres://app:***@[::1]:5432/runs"),
        ("postgresql://app:s3cret@h/runs?sslcert=/a@b/c", "postgresql://app:***@h/runs?sslcert=/a@b/c"),
        ("postgresql://app:s3cret@%2Fsql%2Fp%3Ar/runs", "postgresql://app:***@%2Fsql%2Fp%3Ar/runs"),
        ("postgresql://app@h/runs", "postgresql://app@h/runs"),
        ("postgresql://h:/runs", "postgresql://h:/runs"),
        ("postgresql:///runs?host=/run/p:g@x", "postgresql:///runs?host=/run/p:g@x"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("runs.db", "runs.db"),
        ("mysql://x", "mysql://x"),
        ("mysql://app:s3cret@h/runs", "mysql://***"),
        ("mysql://s3cret@h/runs", "mysql://***"),
        ("postgresql://h/runs;x", "postgresql://***"),
        ("postgresql://h/runs&x", "postgresql://***"),
        ("postgresql://h", "postgresql://h"),
        ("sqlite:///runs.db?mode=ro", "sqlite://***"),
    ],
)
def test_of_an_address_only_what_may_be_a_password_is_hidden(url: str, shown: str) -> None:
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
    "postgresql://app:s3cret@h/runs\n",
    "postgresql://dom/app:s3cret/runs",
    "postgresql://app@h/runs&password=s3cret",
    "postgresql://app@h/runs;password=s3cret",
    "postgresql:///app%3As3cret%40h/runs",
    "postgresql://app@h/runs?sslmode=require;password=s3cret",
    "postgresql://app@h/runs?sslmode=require%26password=s3cret",
    "postgresql://app@h/runs?sslrootcert=/a;password=s3cret",
    "postgresql://app@h/runs?sslrootcert=/a%20password=s3cret",
    "postgresql://app@h/runs?sslkey=/a%26password%3Ds3cret",
    "postgresql://app@h/runs?schema=x;password=s3cret",
    "postgresql://user=app&password=s3cret/runs",
    "postgresql://user=app&password=s3cret@h/runs",
    "postgresql:///runs?host=/x,app:s3cret@127.0.0.1",
    "postgresql:///runs?host=/x;password=s3cret",
    "postgresql:///runs?host=app%3As3cret%40h",
    "postgresql://app%3As3cret%40h/runs",
    "postgresql://%2F%2Fapp%3As3cret%40h/runs",
    "postgresql://%2Fapp%3As3cret@h/runs",
    "postgresql://%2Fx%3Bpassword%3As3cret/runs",
    "postgresql://%2Fx%253As3cret/runs",
    "postgresql:///runs?host=%252Fapp%253As3cret",
    "postgresql://app%3As3cret%40h",
    "postgresql://app%253As3cret%2540h/runs",
    "postgresql://app%3As3cret@h/runs",
    "postgresql://app%253As3cret@h/runs",
    "postgresql:///app%253As3cret/runs",
    "postgresql%3A%2F%2Fapp%3As3cret%40h/runs",
    "postgresql://app@[::1]s3cret/runs",
    "postgresql://app:0012345678s3cret/runs",
    "POSTGRESQ://app:s3cret\u2100@h/runs",
    "POSTGRESQL://app:s3cret@h/runs",
    "sqlite://app:s3cret@h/runs",
    "sqlite:app:s3cret@h/runs",
    "sqlite://app%3As3cret%40h/runs",
    "sqlite:///runs.db?password=s3cret",
    "sqlite:///app:s3cret@h/runs\n",
    "memory://app:s3cret@h/x",
    "memory:///app:s3cret@h/x",
    "memory://?password=s3cret",
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
