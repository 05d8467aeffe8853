"""The inner end of a benchmark process: JSON lines on stdout for what it has to say, a line on stdin to go on."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from benchmarks.workload import Workload

Role = Callable[[Workload, "ChildEnd"], Awaitable[dict[str, Any]]]


class ChildEnd:
    """Talks to the benchmark that started this process; a parent that is gone ends it."""

    #: CPU seconds of this process when it was ready: what came before is start-up.
    cpu_before = 0.0

    def say(self, **facts: object) -> None:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()

    def listen(self) -> dict[str, Any]:
        """The next line from the parent."""
        line = sys.stdin.readline()
        if not line:
            raise SystemExit("the benchmark that started this process is gone")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def meet(self, **facts: object) -> dict[str, Any]:
        """Say that this process is ready, and wait until all are."""
        self.cpu_before = time.process_time()
        self.say(**facts)
        return self.listen()

    async def meet_async(self, **facts: object) -> dict[str, Any]:
        return await trio.to_thread.run_sync(lambda: self.meet(**facts), abandon_on_cancel=True)


def serve(roles: Mapping[str, Role]) -> None:
    """Be the role that the command line names, and report what it returns."""
    role, workload = roles[sys.argv[1]], Workload(**json.loads(sys.argv[2]))
    parent = ChildEnd()
    result = trio.run(role, workload, parent)
    parent.say(result=result | {"cpu": time.process_time() - parent.cpu_before})
