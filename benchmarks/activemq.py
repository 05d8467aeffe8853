"""ActiveMQ Classic in a chain of brokers, from Debian's package, through a STOMP client of plain sockets.

Each broker is a process with a journal (KahaDB, synced before it confirms) and ports of its own on loopback; a
``networkConnector`` leads to the next one.  As the persistent rate is best so, messages are sent in transactions, many
of which are under way, and acknowledged many at a time.  Java compiles what runs often: so messages go the whole way
before the clock starts.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from benchmarks.child import ChildEnd, serve
from benchmarks.processes import START_SECONDS, BenchmarkError, Process, process_facts, python, used_between
from benchmarks.workload import NUMBER, Workload

MODULE = "benchmarks.activemq"
HOME: Final = Path("/usr/share/activemq")
QUEUE = "/queue/orders"
#: Messages of a transaction, and of an acknowledgement.
TOGETHER = 100
#: Messages that go the whole way before the clock starts.
WARM_UP = 4_000
#: As many as a connector, and a consumer, have unacknowledged where nothing else is said.
PREFETCH = 1_000
#: Longer than any of this may take.
LIMIT_SECONDS = 300.0
RECEIVE_BYTES = 1 << 18

_XML = """<beans xmlns="http://www.springframework.org/schema/beans"
  xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
    http://www.springframework.org/schema/beans/spring-beans.xsd
    http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
<broker xmlns="http://activemq.apache.org/schema/core" brokerName="{name}" dataDirectory="{data}" useJmx="false">
  {network}
  <persistenceAdapter><kahaDB directory="{data}"/></persistenceAdapter>
  <transportConnectors>
    <transportConnector name="stomp" uri="stomp+nio://127.0.0.1:{stomp}"/>
    <transportConnector name="openwire" uri="nio://127.0.0.1:{openwire}"/>
  </transportConnectors>
</broker></beans>
"""
_NETWORK = """<networkConnectors>
    <networkConnector name="onward" uri="static:(tcp://127.0.0.1:{port})" networkTTL="{ttl}" prefetchSize="{prefetch}"/>
  </networkConnectors>"""


def is_here() -> bool:
    """Whether Debian's package is there, and a Java to run it."""
    return (HOME / "bin" / "activemq.jar").exists() and shutil.which("java") is not None


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody uses now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def broker(directory: Path, name: str, onward: int, ttl: int) -> tuple[Process, int, int]:
    """A broker, and its ports of STOMP and of its own protocol; ``onward``: the latter of the next broker."""
    folder = directory / name
    folder.mkdir()
    stomp, openwire = free_ports(2)
    network = _NETWORK.format(port=onward, ttl=ttl, prefetch=PREFETCH) if onward else ""
    settings = folder / "activemq.xml"
    about = {"name": name, "data": folder / "data", "network": network, "stomp": stomp, "openwire": openwire}
    settings.write_text(_XML.format(**about))
    command = ["java", "-Xms512m", "-Xmx1g", f"-Dactivemq.home={HOME}", f"-Dactivemq.base={folder}"]
    command += ["-jar", str(HOME / "bin" / "activemq.jar"), "start", f"xbean:file:{settings}"]
    return Process(command, name=f"activemq-{name}", directory=folder, quiet=True), stomp, openwire


def wait_for(port: int) -> None:
    """Wait until a broker listens."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"activemq on port {port} did not listen for {START_SECONDS:.0f} s") from None
            time.sleep(0.05)


def hops(workload: Workload) -> dict[str, float]:
    """A producer at the first broker of a chain, a consumer at the last one."""
    directory, count = Path(workload.directory), workload.nodes - 1
    with ExitStack() as stack:
        process, port, onward = broker(directory, f"activemq-{count}", 0, count)
        brokers = [stack.enter_context(process)]
        wait_for(port)
        at_end = attrs.evolve(workload, url=f"stomp://127.0.0.1:{port}")
        for at in reversed(range(count)):
            process, port, onward = broker(directory, f"activemq-{at}", onward, count)
            brokers.append(stack.enter_context(process))
            wait_for(port)
        at_start = attrs.evolve(workload, url=f"stomp://127.0.0.1:{port}")
        consumer = stack.enter_context(python(MODULE, "consumer", at_end, directory=directory))
        producer = stack.enter_context(python(MODULE, "producer", at_start, directory=directory))
        for client in (consumer, producer):
            client.hear(START_SECONDS)
            client.tell()
        # Both have seen the messages go through that warm the brokers up.
        for client in (producer, consumer):
            client.hear(LIMIT_SECONDS)
        before = [process_facts(process.pid) for process in brokers]
        consumer.tell()
        producer.tell()
        sent, got = producer.result(LIMIT_SECONDS), consumer.result(LIMIT_SECONDS)
        after = [process_facts(process.pid) for process in brokers]
        for process in brokers:
            process.terminate()
    seconds = max(sent["ended"], got["ended"]) - sent["started"]
    cpu = sum(used_between(one, other)[0] for one, other in zip(before, after, strict=True))
    return {
        "activemq_rate": workload.count / seconds,
        "activemq_cpu_per_hop_us": cpu * 1e6 / workload.count / count,
    }


# -- the client


class Stomp:
    """A connection that speaks STOMP 1.1."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread, self._at = b"", 0
        self.send(self.frame("CONNECT", {"accept-version": "1.1", "host": "localhost", "heart-beat": "0,0"}))
        command, _, _ = next(self.frames())
        if command != b"CONNECTED":
            raise RuntimeError(f"activemq answers {command!r}")

    @staticmethod
    def frame(command: str, headers: Mapping[str, object], body: bytes = b"") -> bytes:
        """A frame as bytes."""
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        return f"{command}\n{lines}\n".encode() + body + b"\0"

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def frames(self) -> Iterator[tuple[bytes, dict[bytes, bytes], bytes]]:
        """The frames that come, for ever: command, headers and body of each."""
        while True:
            data, at = self._unread, self._at
            while data[at : at + 1] == b"\n":
                at += 1
            head_end = data.find(b"\n\n", at)
            if head_end >= 0:
                command, *lines = data[at:head_end].split(b"\n")
                headers = dict(line.split(b":", 1) for line in lines)
                start = head_end + 2
                sized = headers.get(b"content-length")
                end = start + int(sized) if sized is not None else data.find(b"\0", start)
                if start <= end < len(data):
                    self._at = end + 1
                    if command == b"ERROR":
                        raise RuntimeError(f"activemq refuses: {data[at:end]!r}")
                    yield command, headers, data[start:end]
                    continue
            more = self._socket.recv(RECEIVE_BYTES)
            if not more:
                raise RuntimeError("activemq has closed the connection")
            self._unread, self._at = data[at:] + more, 0


def produce(stomp: Stomp, first: int, count: int, workload: Workload) -> None:
    """Send numbered messages, and see all of them confirmed."""
    answers, under_way = stomp.frames(), 0
    for start in range(first, first + count, TOGETHER):
        about = {"destination": QUEUE, "persistent": "true", "transaction": start, "content-length": workload.size}
        head = stomp.frame("SEND", about)[:-1]
        bodies = (NUMBER.pack(number).ljust(workload.size, b"\0") for number in range(start, start + TOGETHER))
        sends = b"".join(head + body + b"\0" for body in bodies)
        begin = stomp.frame("BEGIN", {"transaction": start})
        stomp.send(begin + sends + stomp.frame("COMMIT", {"transaction": start, "receipt": start}))
        under_way += TOGETHER
        while under_way >= workload.window:
            next(answers)
            under_way -= TOGETHER
    while under_way:
        next(answers)
        under_way -= TOGETHER


def consume(stomp: Stomp, first: int, count: int) -> None:
    """Receive numbered messages, each once, and see their acknowledgement confirmed."""
    numbers: set[int] = set()
    last: deque[bytes] = deque(maxlen=1)
    answers = stomp.frames()
    while len(numbers) < count:
        command, headers, body = next(answers)
        if command != b"MESSAGE":
            continue
        number = NUMBER.unpack_from(body)[0]
        if number in numbers or not first <= number < first + count:
            raise RuntimeError(f"message {number} came, of {count} from {first} on, {len(numbers)} of which are there")
        numbers.add(number)
        last.append(headers[b"message-id"])
        if len(numbers) % TOGETHER == 0:
            done = {"receipt": "done"} if len(numbers) == count else {}
            about = {"subscription": "1", "message-id": last[0].decode().replace("\\c", ":")}
            stomp.send(stomp.frame("ACK", about | done))
    while next(answers)[0] != b"RECEIPT":
        pass


async def run_producer(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """Send what warms the brokers up, and then what is measured."""
    stomp = Stomp(workload.port)
    await parent.meet_async()
    await trio.to_thread.run_sync(produce, stomp, 0, WARM_UP, workload)
    await parent.meet_async()
    started = time.monotonic()
    await trio.to_thread.run_sync(produce, stomp, WARM_UP, workload.count, workload)
    return {"started": started, "ended": time.monotonic()}


async def run_consumer(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """Receive what warms the brokers up, and then what is measured."""
    stomp = Stomp(workload.port)
    about = {"id": "1", "destination": QUEUE, "ack": "client", "activemq.prefetchSize": PREFETCH}
    stomp.send(stomp.frame("SUBSCRIBE", about))
    await parent.meet_async()
    await trio.to_thread.run_sync(consume, stomp, 0, WARM_UP)
    await parent.meet_async()
    await trio.to_thread.run_sync(consume, stomp, WARM_UP, workload.count)
    return {"ended": time.monotonic()}


if __name__ == "__main__":
    serve({"producer": run_producer, "consumer": run_consumer})
