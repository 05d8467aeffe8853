"""A line of the file of flights."""

from __future__ import annotations

from typing import Final, NamedTuple

#: The columns by name, as the first line of the file has them.
HEADER: Final = (
    b"year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,"
    b"carrier,flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour"
)
#: The field of a flight that never left.
MISSING: Final = b"NA"


class Flight(NamedTuple):
    """A flight: the columns that the demo reads from a line of the file."""

    #: Date, carrier, flight and origin: unique in the file, and the message's duplicate id.
    key: bytes
    carrier: str
    origin: str
    month: int
    #: Departure delay in minutes; None for a cancelled flight.
    delay: int | None


def parse(line: bytes) -> Flight:
    """A line of the file.  Raises: ValueError: it isn't one."""
    fields = line.split(b",", 13)
    if len(fields) != 14:
        raise ValueError(f"a flight has at least 14 fields, this line {len(fields)}")
    year, month, day, carrier, flight, origin = *fields[:3], fields[9], fields[10], fields[12]
    key = b"%b-%b-%b %b %b %b" % (year, month, day, carrier, flight, origin)
    delay = None if fields[5] == MISSING else int(fields[5])
    return Flight(key, carrier.decode(), origin.decode(), int(month), delay)
