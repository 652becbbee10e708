"""The market: a small prediction market whose watchers are told of its events by durable jobs."""
