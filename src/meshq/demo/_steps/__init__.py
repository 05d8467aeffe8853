"""The steps of a run: kills, moves of consumers, the departure of a node, and their results."""

from meshq.demo._steps._kill_step import KillStep, said_of_kill
from meshq.demo._steps._leave_step import LeaveStep, said_of_leave
from meshq.demo._steps._move_step import MoveStep, said_of_move
from meshq.demo._steps._step_result_format import KillResult, LeaveResult, MoveResult

__all__ = [
    "KillResult",
    "KillStep",
    "LeaveResult",
    "LeaveStep",
    "MoveResult",
    "MoveStep",
    "said_of_kill",
    "said_of_leave",
    "said_of_move",
]
