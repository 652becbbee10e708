"""A soak: real workers under random operators, kills, freezes and a database that comes and goes.

Run by hand, `make soak ARGS='--seconds 120 --seed N'`; the suite does not collect it.
"""
