"""The demo: real workers drain market events while one is killed and one is frozen.

`database` is a place of its own, `fleet` the processes, `scene` what is done to them, `display`
what is seen of it, and `verdict` what the tables say in the end.
"""
