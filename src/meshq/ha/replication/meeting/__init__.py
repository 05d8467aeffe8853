"""Nodes of a pair that meet: questions and answers, the standpoints that they show, and which of them may serve."""

from meshq.ha.replication.meeting._answered import Answered
from meshq.ha.replication.meeting._asking import Answer, Asker
from meshq.ha.replication.meeting._meeting_plan import Standpoint, gives_way, may_start, unasked

__all__ = ["Answer", "Answered", "Asker", "Standpoint", "gives_way", "may_start", "unasked"]
