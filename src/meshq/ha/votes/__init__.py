"""The classic vote: a node that has lost the other one of its pair asks other nodes of the cluster, which give votes.

As a pure package it knows the ballot box of a voter and the count of a vote; its shells are the voter and who asks.
"""

from meshq.ha.votes._ballot_box_machine import BALLOTS_MAX, Ballot, BallotBox, GivenVote
from meshq.ha.votes._count_machine import Count, Voters, apart_from, majority
from meshq.ha.votes._election import elected
from meshq.ha.votes._polling import Poll, Pollster
from meshq.ha.votes._voter import Voter

__all__ = [
    "BALLOTS_MAX",
    "Ballot",
    "BallotBox",
    "Count",
    "GivenVote",
    "Poll",
    "Pollster",
    "Voter",
    "Voters",
    "apart_from",
    "elected",
    "majority",
]
