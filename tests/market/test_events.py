"""The identity of an event and the key of its job; the simulated market."""

import csv
import io
import json
from itertools import islice

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from example_project.market import simulation
from example_project.market.events import key
from example_project.market.models import Market, Watch
from leasejobs.arguments import MAX_KEY_CHARACTERS, check_text

parts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
hostile = st.text('[]",:\\\u0001é', min_size=1, max_size=8)
identities = st.tuples(parts | hostile, parts | hostile, parts | hostile)


@given(identities, identities)
def test_different_identities_have_different_keys(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assume(one != other)

    assert key(*one) != key(*other)


@given(hostile, hostile, hostile, st.sampled_from('",[]\\:'))
def test_moving_a_separator_between_parts_changes_the_key(
    market: str, event_type: str, event_ref: str, separator: str
) -> None:
    moved = key(market + separator + event_type, event_ref, event_ref)

    assert moved != key(market, event_type + separator + event_ref, event_ref)


@given(parts.map(lambda text: text * 300), parts)
def test_every_key_fits_into_its_column(long: str, short: str) -> None:
    assert check_text("key", key(long, short, long)) == key(long, short, long)


def test_long_identities_that_differ_at_the_end_have_different_keys() -> None:
    stem = "x" * MAX_KEY_CHARACTERS

    assert key(stem, "resolved", "1") != key(stem, "resolved", "2")
    assert len(key(stem, "resolved", "1")) < MAX_KEY_CHARACTERS


def test_the_simulated_market_follows_from_its_seed() -> None:
    first, again, other = (list(simulation.simulate(500, seed)) for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_the_simulated_market_repeats_no_event_and_resolves_a_market_once() -> None:
    events = list(simulation.simulate(3_000, 5))

    resolved = [event.market for event in events if event.event_type == "resolved"]
    assert len(events) == 3_000
    assert len({event.key for event in events}) == 3_000
    assert resolved
    assert len(resolved) == len(set(resolved))
    for event in events:
        if event.event_type == "price_moved":
            assert 1 <= event.payload["to"] <= 99
            assert event.payload["to"] != event.payload["from"]


def test_a_simulated_file_holds_the_events() -> None:
    file = io.StringIO()
    events = list(islice(simulation.simulate(50, 3), 50))

    simulation.write(file, iter(events))

    rows = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert [row["event_ref"] for row in rows] == [event.event_ref for event in events]
    assert [json.loads(row["payload"]) for row in rows] == [event.payload for event in events]


@pytest.mark.django_db
def test_watchers_follow_from_the_seed_and_the_market() -> None:
    Market.objects.bulk_create([Market(ref=f"m{number}") for number in range(20)])
    pairs = Watch.objects.order_by("market__ref", "watcher__name")
    pairs = pairs.values_list("market__ref", "watcher__name")

    simulation.create_watchers(1)
    first = list(pairs.all())
    simulation.create_watchers(1)
    again = list(pairs.all())
    Watch.objects.all().delete()
    simulation.create_watchers(2)

    assert first == again
    assert {ref for ref, _ in first} == {f"m{number}" for number in range(20)}
    assert list(pairs.all()) != first
