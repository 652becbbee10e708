"""A simulated market: prices that walk at random, markets that resolve, people who watch.

Everything follows from the seed: the same one gives the same file and the same watches.
"""

import csv
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, TextIO

from example_project.market.events import Event
from example_project.market.models import Market, Watch, Watcher

COLUMNS: Final = ("market", "event_type", "event_ref", "occurred_at", "payload", "title")
WATCHERS: Final = 40
MOST_WATCHERS_OF_A_MARKET: Final = 6
_OPENING: Final = datetime(2026, 1, 5, 9, tzinfo=UTC)
_SUBJECTS: Final = (
    "the harbour bridge reopens", "the comet is seen by daylight", "the referendum passes",
    "the marathon record falls", "the reservoir is full", "the night train returns",
    "the museum lends the mask", "the strike ends", "the frost spares the vineyards",
    "the orchestra tours", "the tunnel breaks through", "the satellite answers",
)  # fmt: skip


def simulate(count: int, seed: int) -> Iterator[Event]:
    """Yield `count` events of markets that open, move, sometimes halt, and resolve for good."""
    return islice(_trade(random.Random(seed), f"sim-{seed}"), count)


def _trade(chance: random.Random, stem: str) -> Iterator[Event]:
    now, opened = _OPENING, 0
    trading: list[_Trading] = []
    while True:
        now += timedelta(seconds=chance.randint(1, 90))
        if len(trading) < 20 and (not trading or chance.random() < 0.1):
            opened += 1
            trading.append(_Trading(chance, f"{stem}-{opened:05d}"))
            yield trading[-1].event("opened", now, {"price": trading[-1].price})
            continue
        market = chance.choice(trading)
        draw = chance.random()
        if market.moves > 10 and draw < 0.06:
            trading.remove(market)
            outcome = "yes" if chance.randint(0, 100) < market.price else "no"
            yield market.event("resolved", now, {"outcome": outcome})
        elif draw < 0.09:
            yield market.event("halted", now, {"minutes": chance.choice((5, 15, 60))})
        else:
            before = market.move(chance)
            yield market.event("price_moved", now, {"from": before, "to": market.price})


class _Trading:
    def __init__(self, chance: random.Random, ref: str) -> None:
        year = chance.randint(2026, 2031)
        self.ref = ref
        self.title = f"Will it happen before {year} that {chance.choice(_SUBJECTS)}?"
        self.price = chance.randint(15, 85)
        self.moves = 0
        self._told = 0

    def move(self, chance: random.Random) -> int:
        before = self.price
        step = chance.choice((-6, -3, -2, -1, 1, 2, 3, 6))
        self.price = before + step if 1 <= before + step <= 99 else before - step
        self.moves += 1
        return before

    def event(self, event_type: str, now: datetime, payload: Any) -> Event:
        self._told += 1
        return Event(self.ref, event_type, f"{self.ref}/{self._told}", now, payload, self.title)


def write(file: TextIO, events: Iterator[Event]) -> None:
    """Write events as CSV, in the columns that `importevents` reads without a mapping."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for event in events:
        writer.writerow(
            [
                event.market,
                event.event_type,
                event.event_ref,
                event.occurred_at.isoformat(),
                json.dumps(event.payload),
                event.title,
            ]
        )


def create_watchers(seed: int) -> int:
    """Give every market in the table some watchers; return how many watches there are.

    Who watches a market follows from the seed and the market's name alone. Again is harmless.
    """
    Watcher.objects.bulk_create(
        [Watcher(name=f"watcher {number:02d}") for number in range(1, WATCHERS + 1)],
        ignore_conflicts=True,
    )
    names = [f"watcher {number:02d}" for number in range(1, WATCHERS + 1)]
    found = dict(Watcher.objects.filter(name__in=names).values_list("name", "pk"))
    pks = [found[name] for name in names]
    markets = Market.objects.order_by("ref").values_list("pk", "ref").iterator(chunk_size=1_000)
    while chunk := list(islice(markets, 1_000)):
        watches = []
        for market, ref in chunk:
            chance = random.Random(f"{seed}:{ref}")
            size = chance.randint(1, MOST_WATCHERS_OF_A_MARKET)
            watches += [
                Watch(market_id=market, watcher_id=watcher)
                for watcher in sorted(chance.sample(pks, size))
            ]
        Watch.objects.bulk_create(watches, ignore_conflicts=True, batch_size=2_000)
    return Watch.objects.count()
