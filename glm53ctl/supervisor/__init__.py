"""The supervisor: one process that owns one server child.

Decisions are in `machine` and `classify` and touch nothing; `loop` is the only writer of state; the
other modules do one effect each.
"""
