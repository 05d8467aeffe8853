"""One program of calls for each face: what each of them raises when the outside fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import attrs
import trio

import meshq
from meshq import MeshqError, aio, blocking

#: By the name of the call; ``"the block"`` is the block of the client or the broker.
Found = dict[str, BaseException]
#: A call of a client, the same on every face.
Call = Callable[[Any], Awaitable[object]]
BLOCK = "the block"


class _Done:
    """The result of a call that has blocked, as what an asynchronous face gives."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __getattr__(self, name: str) -> Any:
        return getattr(_Awaited(self._result), name)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._result
        yield

    async def __aenter__(self) -> _Awaited:
        return _Awaited(self._result.__enter__())

    async def __aexit__(self, *error: Any) -> Any:
        return self._result.__exit__(*error)


class _Awaited:
    """A thing of the blocking face, whose calls are awaited."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        return lambda *arguments, **keywords: _Done(method(*arguments, **keywords))


def _drive(coroutine: Coroutine[Any, Any, object]) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("a call of the blocking face has waited")


def _one(name: str, call: Call, client: Any, found: Found) -> Coroutine[Any, Any, object]:
    async def caught() -> None:
        try:
            await call(client)
        except MeshqError as error:
            found[name] = error

    return caught()


@attrs.frozen
class Program:
    """Open ``make(face)``, begin all ``calls``, and break something behind them."""

    make: Callable[[Any], Any]
    calls: dict[str, Call]
    breaks: Callable[[], None] = lambda: None

    def on_trio(self) -> Found:
        """What they raise on trio."""
        found: Found = {}

        async def main() -> None:
            try:
                async with self.make(meshq) as client, trio.open_nursery() as nursery:
                    for name, call in self.calls.items():
                        nursery.start_soon(_one, name, call, client, found)
                    await trio.sleep(0.2)
                    await trio.to_thread.run_sync(self.breaks)
            except* MeshqError as group:
                found[BLOCK] = group.exceptions[0]

        trio.run(main)
        return found

    def on_asyncio(self) -> Found:
        """What they raise on asyncio."""
        found: Found = {}

        async def main() -> None:
            try:
                async with self.make(aio) as client:
                    tasks = [asyncio.create_task(_one(*call, client, found)) for call in self.calls.items()]
                    try:
                        await asyncio.sleep(0.2)
                        await asyncio.to_thread(self.breaks)
                    finally:
                        await asyncio.wait(tasks, timeout=20)
            except MeshqError as error:
                found[BLOCK] = error

        asyncio.run(main())
        return found

    def on_threads(self) -> Found:
        """What they raise in threads."""
        found: Found = {}
        try:
            with self.make(blocking) as client:
                threads = [
                    threading.Thread(target=_drive, args=(_one(*call, _Awaited(client), found),), daemon=True)
                    for call in self.calls.items()
                ]
                for thread in threads:
                    thread.start()
                threading.Event().wait(0.2)
                self.breaks()
                for thread in threads:
                    thread.join(timeout=20)
        except MeshqError as error:
            found[BLOCK] = error
        return found


FACES: dict[str, Callable[[Program], Found]] = {
    "trio": Program.on_trio,
    "aio": Program.on_asyncio,
    "blocking": Program.on_threads,
}
