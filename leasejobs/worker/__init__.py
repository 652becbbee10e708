"""The worker fleet: a supervisor, its children, and what each child is made of.

Four writers meet on one running row, and may do this:

* the settler ends an attempt whose body has returned: by pk and token, skipping a locked row;
* the task's own `fenced()` holds the row's lock, writes, re-arms or ends it: its body has not
  returned, so the settler does not know the row yet;
* the heartbeat extends unexpired leases by (pk, token), skipping locked rows: it never waits for
  a `fenced()` and never revives what expired;
* the supervisor ends the rows of a holder whose process it has reaped: no other writer of that
  holder is left but statements the server is still running, whose locks it skips and comes back
  to, and whose writes the fence refuses if it was first.

Any worker ends a row whose lease expired. Whoever comes second finds another token or no token.
"""
