"""Calls of connectors to other systems on a client for threads; programs do not need these."""

from meshq.blocking.connector._ranges import RunPart, at_end, call_in_loop, holes_between, range_reader, receive_runs

__all__ = ["RunPart", "at_end", "call_in_loop", "holes_between", "range_reader", "receive_runs"]
