"""`manage.py importevents`: what is refused costs its own line only, and nothing is done twice."""

import io
import json
import subprocess
import sys
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from example_project.market import lines
from example_project.market.events import key
from example_project.market.models import Market
from leasejobs.models import Job

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
HEADER = "market,event_type,event_ref,occurred_at,payload\n"
AT = "2026-01-02T03:04:05Z"
GOOD = f"m1,resolved,good,{AT},{{}}\n"


@dataclass
class Imported:
    """What a run printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def told(self) -> list[str]:
        return self.err.splitlines()


@pytest.fixture
def run(db: None, tmp_path: Path) -> Any:
    """Return a function that imports a text, or bytes, and returns an `Imported`."""

    def run(content: str | bytes, *arguments: str, name: str = "events.csv") -> Imported:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        out, err, status = io.StringIO(), io.StringIO(), 0
        try:
            call_command("importevents", str(path), *arguments, stdout=out, stderr=err)
        except SystemExit as error:
            status = int(error.code or 0)
        return Imported(status, out.getvalue(), err.getvalue())

    return run


def test_an_event_becomes_a_job_under_its_key(run: Any) -> None:
    row = f'm1,resolved,r1,{AT},"{{""outcome"": ""yes""}}"\n'

    imported = run(HEADER + row)

    job = Job.objects.get()
    assert imported.status == 0
    assert imported.out == "2 lines: 1 events, 1 enqueued, 0 duplicates, 0 refused\n"
    assert (job.key, job.key_scope) == (key("m1", "resolved", "r1"), "always")
    assert job.kwargs == {
        "market": "m1",
        "event_type": "resolved",
        "event_ref": "r1",
        "occurred_at": "2026-01-02T03:04:05+00:00",
        "payload": {"outcome": "yes"},
    }
    assert Market.objects.get().ref == "m1"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (f",resolved,r,{AT},{{}}", "has an empty market"),
        (f"m, ,r,{AT},{{}}", "has an empty event_type"),
        (f"m,resolved,,{AT},{{}}", "has an empty event_ref"),
        ("m,resolved,r,,{}", "has an empty occurred_at"),
        ("m,resolved,r,yesterday,{}", "not an ISO 8601 date and time: 'yesterday'"),
        ("m,resolved,r,2026-01-02T03:04:05,{}", "without an offset from UTC"),
        ("m,resolved,r,2026-01-02,{}", "without an offset from UTC"),
        ("m,resolved,r,0001-01-01T00:00:00+14:00,{}", "not an ISO 8601 date and time"),
        (f"m,resolved,r,{AT}", "has too few columns: 4, and the header has 5"),
        (f"m,resolved,r,{AT},{{}},more", "has too many columns: 6, and the header has 5"),
        (f"m,resolved,r,{AT},{{", "has a payload that is not JSON"),
        (f"m,resolved,r,{AT},NaN", "NaN is not a JSON value"),
        (f"m,resolved,r,{AT},1e999", "cannot be stored"),
        (f'm,resolved,r,{AT},"""\\u0000"""', "cannot be stored"),
        (f'm,resolved,r,{AT},"""\\ud800"""', "cannot be stored"),
        (f"m,resolved,r,{AT}," + "[" * 100_000, "nested too deeply"),
        (f'm,resolved,"r"x,{AT},{{}}', "is not CSV"),
        (f"m,resolved,r\0,{AT},{{}}", "holds a NUL (byte 13 of the line)"),
        (f"{'m' * 501},resolved,r,{AT},{{}}", "a market of 501 characters; at most 500"),
        (f"m,resolved,{'r' * (1 << 20)},{AT},{{}}", "is longer than 1,048,576 bytes"),
        (f'm,resolved,"r,{AT},{{}}', "unexpected end of data (a quoted text runs on to line 4)"),
    ],
)
def test_a_bad_line_is_refused_and_costs_no_other(run: Any, row: str, reason: str) -> None:
    following = f"m2,resolved,good,{AT},{{}}\n"

    imported = run(HEADER + GOOD + row + "\n" + following)

    assert imported.status == 1
    assert len(imported.told) == 1
    assert imported.told[0].startswith("line 3: refused: ")
    assert reason in imported.told[0]
    assert imported.out == "4 lines: 2 events, 2 enqueued, 0 duplicates, 1 refused\n"
    assert set(Market.objects.values_list("ref", flat=True)) == {"m1", "m2"}


def test_a_line_in_another_encoding_is_refused(run: Any) -> None:
    latin = f"m,resolved,caf\xe9,{AT},{{}}\n".encode("latin-1")

    imported = run(HEADER.encode() + latin + GOOD.encode())

    assert imported.told == ["line 2: refused: is not UTF-8 (0xe9 at byte 15 of the line)"]
    assert Job.objects.count() == 1


def test_an_unclosed_quote_costs_one_line_even_before_an_unreadable_one(run: Any) -> None:
    open_quote = f'm,resolved,"r,{AT},{{}}\n'.encode()
    latin = f"m,resolved,caf\xe9,{AT},{{}}\n".encode("latin-1")

    imported = run(HEADER.encode() + open_quote + latin + GOOD.encode() + open_quote)

    assert [told.split(":")[0] for told in imported.told] == ["line 2", "line 3", "line 5"]
    assert Job.objects.count() == 1


def test_lines_are_counted_as_in_the_file_where_texts_span_several(run: Any) -> None:
    spanning = f'm1,resolved,"two\nlines",{AT},{{}}\n'

    imported = run(HEADER + spanning + "\n\n" + f"m1,,r,{AT},{{}}\n")

    assert imported.told == ["line 6: refused: has an empty event_type"]
    assert imported.out == "6 lines: 1 events, 1 enqueued, 0 duplicates, 1 refused\n"
    assert Job.objects.get().kwargs["event_ref"] == "two\nlines"


def test_a_byte_order_mark_and_crlf_are_no_part_of_the_values(run: Any) -> None:
    imported = run(b"\xef\xbb\xbf" + (HEADER + GOOD).replace("\n", "\r\n").encode())

    assert imported.status == 0
    assert Job.objects.get().key == key("m1", "resolved", "good")


def test_duplicates_are_told_and_enqueued_once(run: Any) -> None:
    first = run(HEADER + GOOD + GOOD)
    again = run(HEADER + "\n" + GOOD)

    job = Job.objects.get()
    assert (first.status, again.status) == (0, 0)
    assert first.told == ["line 3: duplicate: is the event of line 2"]
    assert first.out == "3 lines: 2 events, 1 enqueued, 1 duplicates, 0 refused\n"
    assert again.told == [f"line 3: duplicate: is an event that job {job.pk} already has"]


def test_duplicates_are_found_across_batches(run: Any) -> None:
    other = f"m2,resolved,r,{AT},{{}}\n"

    imported = run(HEADER + GOOD + other + GOOD, "--batch", "1")

    assert imported.out == "4 lines: 3 events, 2 enqueued, 1 duplicates, 0 refused\n"
    assert Job.objects.count() == 2


def test_a_flood_of_bad_lines_is_bounded_and_counted(run: Any) -> None:
    imported = run(HEADER + "bad\n" * 50 + GOOD)

    assert len(imported.told) == 21
    assert imported.told[-1] == "… and 30 more refused"
    assert "1 enqueued, 0 duplicates, 50 refused" in imported.out


def test_parts_that_look_alike_when_joined_are_two_events(run: Any) -> None:
    rows = f'"a,b",c,d,{AT},{{}}\na,"b,c",d,{AT},{{}}\n'

    assert "2 enqueued" in run(HEADER + rows).out


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("[1, 2]", "is not a JSON object but an array"),
        ('"text"', "is not a JSON object but a string"),
        ("null", "is not a JSON object but null"),
        ("{", "is not JSON"),
        ('{"market": Infinity}', "Infinity is not a JSON value"),
        ('{"market": 1.5}', "has a number for 'market', which must be a text or a whole number"),
        ('{"market": true}', "has a boolean for 'market'"),
        ('{"market": ["m"]}', "has an array for 'market'"),
        ('{"market": null}', "has an empty market"),
        ('{"market": "m", "event_type": "\\u0000"}', "with a NUL or half a character"),
        ('{"market": "\\ud800"}', "with a NUL or half a character"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_json_line_is_refused_and_costs_no_other(run: Any, value: str, reason: str) -> None:
    imported = run(f"{value}\n\n{_json()}\n", name="events.jsonl")

    assert imported.status == 1
    assert imported.told[0].startswith("line 1: refused: ")
    assert reason in imported.told[0]
    assert imported.out == "3 lines: 1 events, 1 enqueued, 0 duplicates, 1 refused\n"


def test_json_lines_keep_values_and_take_whole_numbers_as_names(run: Any) -> None:
    run(_json(market=12, payload=[1, {"a": None}], title="Rain?"), name="events.jsonl")

    assert Job.objects.get().kwargs["market"] == "12"
    assert Job.objects.get().kwargs["payload"] == [1, {"a": None}]
    assert Market.objects.get().title == "Rain?"


def test_without_a_payload_the_other_columns_are_it(run: Any) -> None:
    run(f"market,event_type,event_ref,occurred_at,by,note\nm,t,r,{AT},ann,\n")

    assert Job.objects.get().kwargs["payload"] == {"by": "ann", "note": ""}


def test_each_resolved_market_is_an_event_by_constants_and_columns(run: Any) -> None:
    content = (
        "question,outcome,category,resolution_date,volume,market_id,closed\n"
        '"Will A, or B, win?","No","","2025-10-20T00:00:00Z",0,"0xa7",true\n'
        '"Will C win?","Yes","","2025-10-20T00:00:00Z",0,"0x85",true\n'
    )

    imported = run(
        content, "--map", "market=market_id", "--map", "title=question",
        "--map", "event_type==resolved", "--map", "event_ref==resolution",
        "--map", "occurred_at=resolution_date",
    )  # fmt: skip

    job = Job.objects.get(key=key("0xa7", "resolved", "resolution"))
    assert imported.status == 0
    assert Job.objects.count() == 2
    assert job.kwargs["occurred_at"] == "2025-10-20T00:00:00+00:00"
    assert job.kwargs["payload"] == {
        "outcome": "No", "category": "", "volume": "0", "closed": "true"
    }  # fmt: skip
    assert Market.objects.get(ref="0xa7").title == "Will A, or B, win?"


QUOTES = (
    "market_id,market_title,status,close_date,previous_day_price,previous_week_price\n"
    "k1,Mars?,active,2099-08-01T04:59:00Z,8.0,10.0\n"
    "k2,Pope?,active,2070-01-01T15:00:00Z,7,7.0\n"
    "k3,Pope?,finalized,2025-09-19T17:09:09.908601Z,,6.0\n"
    "k4,IPO?,finalized,2025-09-19T17:09:26Z,3.0,5.0\n"
)


def test_finalized_quotes_are_resolved_events(run: Any) -> None:
    imported = run(
        QUOTES, "--where", "status=finalized", "--map", "market=market_id",
        "--map", "title=market_title", "--map", "event_type==resolved",
        "--map", "event_ref==resolution", "--map", "occurred_at=close_date",
    )  # fmt: skip

    assert imported.out == "5 lines: 2 events, 2 enqueued, 0 duplicates, 0 refused, 2 skipped\n"
    assert set(Market.objects.values_list("ref", flat=True)) == {"k3", "k4"}


def test_quotes_whose_prices_differ_are_price_moved_events(run: Any) -> None:
    imported = run(
        QUOTES, "--where-differs", "previous_week_price", "previous_day_price",
        "--map", "market=market_id", "--map", "event_type==price_moved",
        "--map", "event_ref=={previous_week_price} to {previous_day_price}",
        "--map", f"occurred_at=={AT}",
        "--map", 'payload=={{"from": {previous_week_price}, "to": {previous_day_price}}}',
    )  # fmt: skip

    assert imported.out == "5 lines: 2 events, 2 enqueued, 0 duplicates, 0 refused, 2 skipped\n"
    job = Job.objects.get(key=key("k1", "price_moved", "10.0 to 8.0"))
    assert job.kwargs["payload"] == {"from": 10.0, "to": 8.0}


@pytest.mark.parametrize(
    ("content", "arguments", "reason"),
    [
        ("a,b\n1,2\n", (), "no column 'market', 'event_type', 'event_ref', 'occurred_at'. Its"),
        (HEADER, ("--map", "market=ref"), "no column 'ref' (for market)"),
        (HEADER, ("--where", "state=x"), "no column 'state' (for --where)"),
        (HEADER, ("--map", "colour=a"), "'colour' is not a field; the fields are market,"),
        (HEADER, ("--map", "market"), "write FIELD=COLUMN"),
        (HEADER, ("--map", "market=="), "market must not be empty"),
        (HEADER, ("--map", "market=={"), "write {{ for a brace"),
        (HEADER, ("--map", "market=={a!r}"), "only the name of a column"),
        (HEADER, ("--map", "market=a", "--map", "market=b"), "more than once"),
        (HEADER, ("--where", "state"), "write COLUMN=VALUE"),
        (HEADER, ("--batch", "0"), "--batch must be"),
        ("", (), "the file is empty"),
        ("\n\n", (), "the file is empty"),
        ("market,market\n", (), "names 'market' more than once"),
        (HEADER.encode("utf-16"), (), "UTF-16"),
        (b"caf\xe9,market\n", (), "line 1, which names the columns, is not UTF-8"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_an_error_at_the_door(
    run: Any, content: str | bytes, arguments: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(CommandError) as caught:
        run(content, *arguments)

    assert reason in str(caught.value)
    assert caught.value.returncode == 2
    assert not Job.objects.exists()


def test_a_file_that_is_not_there_and_a_name_without_a_format_are_errors(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file"):
        call_command("importevents", str(tmp_path / "none.csv"))
    with pytest.raises(CommandError, match="add --format"):
        call_command("importevents", str(tmp_path / "events.dat"))


def test_a_file_larger_than_memory_is_read_in_pieces() -> None:
    class Endless(io.RawIOBase):
        def __init__(self) -> None:
            self.left = 60_000_000

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            size = min(len(buffer), self.left)
            buffer[:size] = b"x" * size  # one line without an end
            self.left -= size
            return size

    tracemalloc.start()
    found = list(lines.read(io.BufferedReader(Endless())))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert [(line.number, bool(line.problem)) for line in found] == [(1, True)]
    assert peak < 8 * lines.MAX_LINE_BYTES


@pytest.mark.crash
def test_an_import_from_standard_input_that_is_killed_is_completed_by_the_next(
    worker_env: dict[str, str],
) -> None:
    content = "".join([HEADER, *(f"m{n % 7},t,{n},{AT},{{}}\n" for n in range(400))]).encode()
    command = [sys.executable, str(MANAGE), "importevents", "-", "--format", "csv", "--batch", "50"]

    with subprocess.Popen(
        command, env=worker_env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdin is not None
        first.stdin.write(content[: len(content) // 2])
        first.stdin.flush()
        _until(lambda: Job.objects.count() >= 100)
        first.kill()
        first.wait()
    killed_after = Job.objects.count()
    again = subprocess.run(command, env=worker_env, input=content, capture_output=True)

    assert 100 <= killed_after < 400
    assert again.returncode == 0, again.stderr
    assert f"400 events, {400 - killed_after} enqueued, {killed_after} duplicates" in (
        again.stdout.decode()
    )
    assert Job.objects.count() == 400


@pytest.mark.crash
def test_two_imports_of_one_file_at_once_enqueue_every_event_once(
    worker_env: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "events.csv"
    path.write_text("".join([HEADER, *(f"m{n % 7},t,{n},{AT},{{}}\n" for n in range(2_000))]))
    command = [sys.executable, str(MANAGE), "importevents", str(path), "--batch", "100"]

    running = [subprocess.Popen(command, env=worker_env, stderr=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL) for _ in range(2)]  # fmt: skip

    assert [process.wait(60) for process in running] == [0, 0]
    assert Job.objects.count() == 2_000


def _json(**values: Any) -> str:
    event = {"market": "m1", "event_type": "t", "event_ref": "r", "occurred_at": AT}
    return json.dumps(event | values)


def _until(fact: Any) -> None:
    deadline = time.monotonic() + 30
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.02)
