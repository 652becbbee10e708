"""Foreign text in a row: bounded, storable, free of secrets and locals, whatever a task throws."""

import time
from typing import Any

import pytest

from leasejobs import task
from leasejobs.redaction import DETAIL_CHARACTERS, TRACEBACK_CHARACTERS, describe, redact, storable
from leasejobs.states import State
from tests.running import run_next

SEED = "SB3KJXOVPQ6MWZ7A2DGHTLYR4NEFUC5I3KJXOVPQ6MWZ7A2DGHTLYR4N"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7bq\nq3n0xZ8vJkR5\n"
    "-----END RSA PRIVATE KEY-----"
)

# text -> what must not be found of it
SECRETS = {
    "userinfo": ("GET https://joe:hunter2@example.org/x failed", ["hunter2"]),
    "userinfo with an at sign": ("postgres://joe:hun@ter2@db:5432/x", ["hun@", "ter2"]),
    "userinfo with a slash": ("postgres://joe:hun/ter2@db:5432/x", ["hun/ter2"]),
    "database in a URL": ("could not connect to postgresql://app:s3cr3t@db/app", ["s3cr3t"]),
    "query": ("GET /cb?state=1&access_token=abc123def&x=1: 500", ["abc123def"]),
    "query of a signature": ("GET /o?X-Amz-Signature=deadbeef01 HTTP/1.1", ["deadbeef01"]),
    "header": ("Authorization: Bearer abcdef123456", ["abcdef123456"]),
    "header in a dict": (repr({"Authorization": "Bearer abcdef123456"}), ["abcdef123456"]),
    "header in bytes": (repr({b"authorization": b"Basic am9lOmh1bnRlcjI="}), ["am9lOmh1bnRlcjI"]),
    "header in a tuple": (repr([("Authorization", "Bearer abcdef123456")]), ["abcdef123456"]),
    "api key in a tuple": (repr([("X-Api-Key", "abcdef123456")]), ["abcdef123456"]),
    "api key": (repr({"X-Api-Key": "abcdef123456"}), ["abcdef123456"]),
    "cookie": ("Cookie: sessionid=abcdef123456", ["abcdef123456"]),
    "dsn": ("connection to host=db user=app password=hunter2 failed", ["hunter2"]),
    "dsn quoted": ("host=db password='correct horse' user=app", ["correct", "horse"]),
    "json": ('{"password": "correct horse, battery", "user": 1}', ["correct", "horse", "battery"]),
    "json with punctuation": ('{"secret": "a)b;c&d]e"}', ["a)b", "c&d", "d]e"]),
    "dict": (repr({"api_secret": "p,q;r"}), ["p,q", "q;r"]),
    "Stellar seed": (f"bad signature for {SEED}.", [SEED[:20], SEED[20:]]),
    "JSON web token": (f"refused: {JWT}", [JWT[:30], JWT[30:60], JWT[60:]]),
    "PEM": (PEM, ["MIIEowIBAAKCAQEA7bq", "q3n0xZ8vJkR5"]),
    "PEM in a repr": (repr(PEM), ["MIIEowIBAAKCAQEA7bq", "q3n0xZ8vJkR5"]),
    "PEM cut short": (PEM[:60], ["MIIEowIBAAKCAQEA7bq"]),
}  # fmt: skip


@task(max_attempts=1)
def leak(name: str, chained: bool = False) -> None:
    text, _ = SECRETS[name]
    if not chained:
        raise RuntimeError(text)
    try:
        raise KeyError(text)
    except KeyError as error:
        raise RuntimeError("harmless") from error


@task(max_attempts=1)
def leak_by_local(length: int) -> None:
    secret = "hunter" * length
    raise RuntimeError(f"nothing to see: {len(secret)}")


@task(max_attempts=1)
def throw(name: str) -> None:
    hostile = HOSTILE[name]
    raise hostile()


@pytest.mark.django_db
@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.field_case("B011")
def test_secret_in_an_exception_is_in_no_stored_column(name, chained):
    leak.enqueue(name, chained)

    run = run_next()

    stored = repr({**run.row, "args": None}) + repr(run.attempt)
    assert [part for part in SECRETS[name][1] if part in stored] == []
    assert run.row["failure_code"] == "task_raised"


@pytest.mark.django_db
def test_locals_are_in_no_stored_column():
    leak_by_local.enqueue(3)

    run = run_next()

    assert "hunterhunter" not in repr(run.row) + repr(run.attempt)
    assert "nothing to see: 18" in run.attempt["traceback"]


def test_quoted_secret_ends_at_the_quote_that_is_not_escaped():
    redacted = redact(r'{"password": "abc\"defghi", "user": "joe"}', 1000)

    assert "abc" not in redacted
    assert "defghi" not in redacted
    assert '"user": "joe"' in redacted


@pytest.mark.parametrize("text", [
    "could not reach https://example.org/path?page=2",
    "expected 3 tokens, got 5",
    "order 17 of customer joe@example.org has no lines",
    "SELECT * FROM secrets_table WHERE id = 3",
    "GDQP2KPQGKIHYJGXNUIYOMHARUARCA7DJT5FO2FFOOKY3B2WSQHG4W37 is a public key",
])  # fmt: skip
def test_ordinary_text_is_left_readable(text):
    assert redact(text, 1000) == text


@pytest.mark.parametrize("name", SECRETS)
def test_secret_across_the_cut_shows_none_of_it(name):
    text, parts = SECRETS[name]
    for edge in (DETAIL_CHARACTERS, DETAIL_CHARACTERS * 2):
        for inside in range(0, len(text), 7):
            redacted = redact(words(edge - inside) + text, DETAIL_CHARACTERS)
            assert [part for part in parts if part in redacted] == []


@pytest.mark.parametrize("name", ["Stellar seed", "JSON web token", "userinfo", "PEM"])
def test_secret_cut_by_the_bound_on_messages_leaves_no_half_in_the_traceback(name):
    text, parts = SECRETS[name]
    for edge in (2000, 4000):
        for inside in range(8, len(text) + 20, 8):
            _, detail, trace = describe(RuntimeError(words(edge - inside) + text))
            for part in parts:
                assert part[:12] not in detail
                assert part[:12] not in trace


# hostile exceptions


def chain_in_a_loop() -> BaseException:
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def chain_of_thousands() -> BaseException:
    error = RuntimeError("last")
    for number in range(5000):
        outer = RuntimeError(f"number {number}")
        outer.__cause__ = error
        error = outer
    return error


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class Textless(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class Exiting(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Slotted(Exception):
    __slots__ = ("lock",)

    def __init__(self) -> None:
        import threading

        self.lock = threading.Lock()
        super().__init__(self.lock)


class HostileText(str):
    __slots__ = ()

    def __getitem__(self, key: Any) -> str:
        raise ValueError("no part of it")


class Disguised(Exception):
    def __str__(self) -> str:
        return HostileText("text")


class Causing(Exception):
    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise ValueError("no cause")


Renamed = type("Renamed", (Exception,), {"__module__": None, "__qualname__": "Bad\x00\ud800Name"})


def recurse(depth: int = 0) -> BaseException:
    return recurse(depth + 1)


HOSTILE: dict[str, Any] = {
    "NUL": lambda: RuntimeError("a\x00b"),
    "surrogates": lambda: RuntimeError("\ud800\udfff"),
    "text that raises": Unprintable,
    "text that never ends": Endless,
    "text that is none": Textless,
    "text that exits": Exiting,
    "text that is hostile": Disguised,
    "fifty megabytes": lambda: RuntimeError("x" * 50_000_000),
    "fifty megabytes of secrets": lambda: RuntimeError("password=" * 5_500_000),
    "one long word for every pattern": lambda: RuntimeError("a" * 200_000 + "@"),
    "recursion": recurse,
    "unpicklable": Slotted,
    "chain in a loop": chain_in_a_loop,
    "chain of thousands": chain_of_thousands,
    "cause that raises": Causing,
    "group": lambda: ExceptionGroup("many", [RuntimeError(str(n)) for n in range(1000)]),
    "strange class": Renamed,
    "escape sequences": lambda: RuntimeError("\x1b[2J\r\n\t\x07"),
}


@pytest.mark.django_db
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_exception_ends_in_a_written_outcome_with_readable_text(name):
    throw.enqueue(name)
    escaped = ""
    try:
        run = run_next()
    except BaseException as error:  # noqa: BLE001 - pytest itself could not report some of these
        escaped = type(error).__name__
    assert not escaped, f"{escaped} came out of the run"

    assert (run.row["state"], run.row["failure_code"]) == (State.FAILED, "task_raised")
    attempt = run.attempt
    assert attempt["outcome"] == "failed"
    assert len(attempt["detail"]) <= DETAIL_CHARACTERS
    assert len(attempt["traceback"]) <= TRACEBACK_CHARACTERS
    assert attempt["detail"] + attempt["traceback"]


@pytest.mark.parametrize("part", [
    "a", "x-", "a.", "a://", "a://b", "password", "password=", "token ", "authorization: ", "eyJ",
    "eyJaaaaa.", "S", "-----BEGIN PRIVATE KEY-----", "'", '"', "\\", "@", " ", "=", "{'a': '",
], ids=ascii)  # fmt: skip
def test_redaction_takes_linear_time(part):
    """One blob in a message must not hold the GIL until the leases of the process are lost."""
    began = time.process_time()

    redact(part * (2000 // len(part)), TRACEBACK_CHARACTERS)

    assert time.process_time() - began < 0.1


def test_storable_text_keeps_its_length_and_marks_what_it_replaced():
    assert storable("a\x00b\ud800c") == "a\ufffdb\ufffdc"
    assert storable("ünïcødé 🎈") == "ünïcødé 🎈"


def test_cut_text_is_marked():
    assert redact("x" * 2001, 2000) == "x" * 1999 + "…"
    assert redact("word " * 10_000, 2000) == ("word " * 400)[:1999] + "…"
    assert redact("x" * 2000, 2000) == "x" * 2000


def words(length: int) -> str:
    """Return `length` characters of harmless words, the last of them a space."""
    return ("abc " * (length // 4 + 1))[-length:] if length > 0 else ""


@pytest.mark.parametrize("text", [
    "password=['hunter2', 'hunter3']", '{"password": ["hunter2", "hunter3"]}',
    "token: {'a': 'hunter2', 'b': 'hunter3'}", "secret=[hunter2, hunter3",
])  # fmt: skip
def test_every_value_of_a_list_under_a_secrets_name_is_hidden(text):
    assert "hunter" not in redact(text, 200)
