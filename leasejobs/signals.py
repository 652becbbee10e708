"""Signals the verbs send; whoever logs or counts listens here.

Every signal is sent with `send_robust` after the change it tells of is committed (or handed to
`on_commit`), so a failing receiver can undo nothing.
"""

from django.dispatch import Signal

# alias, queues: {queue: most urgent priority} claimable now, enqueued or taken back
jobs_claimable = Signal()
# queue, waits: a batch was claimed; for how many seconds each of its rows had been due
jobs_claimed = Signal()
# runs: [(queue, task, seconds)] of task bodies that ended; sent by a worker once per flush
bodies_returned = Signal()
# attempts: list of leases.Ended; sent once per committed batch
attempts_ended = Signal()
# lease, outcome: a holder's outcome or write was refused
lease_lost = Signal()
# pk, holder, cause, state, seconds: the row of a dead or silent holder was taken back, so long
# after its lease expired or its process was seen dead (None: not known)
jobs_recovered = Signal()
# pks: rows that passed their deadline were cancelled
jobs_expired = Signal()
# holder: sent in each worker child once, before it claims anything
worker_child_started = Signal()
# verb, pks, actor, reason, alias: an operator moved (or flagged) jobs, or queues by their names;
# the sender is the model
jobs_operated = Signal()
# event, fields, level: something happened to a worker process
worker_changed = Signal()
# pk, error: a row could not be taken back this time
recovery_failed = Signal()
# job, failure: a task raised after it had completed itself in fenced(); the job stays succeeded
raised_after_completion = Signal()
