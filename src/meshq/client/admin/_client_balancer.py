"""A balancer of the broker, as a client of that broker asks it."""

from __future__ import annotations

from typing import Final

import attrs

from meshq.abc import BalancerTarget
from meshq.client.session._client_context import ClientContext
from meshq.errors import SettingsError
from meshq.lb import KeyFilter
from meshq.statistics import BalancerRoute, BalancerStatistics, BalancerTargetStatistics

#: Characters of a key.
_TEXT_CHARACTERS_MAX: Final = 1_024


class ClientBalancer:
    """A balancer of the broker that a client is connected to, returned by ``client.balancer``.

    For clients that can't be redirected, and for operators, who need the permission to manage the broker for everything
    but ``target``.  Each call is sent once.  ``CallTimeoutError``, ``UnblockedError`` and ``ConnectionBrokenError`` say
    in ``outcome`` whether it may have been carried out; repeating it does no harm.
    """

    def __init__(self, context: ClientContext, name: str) -> None:
        self._context = context
        self.name: str = name

    def __repr__(self) -> str:
        return f"<ClientBalancer {self.name!r}>"

    async def target(self, key: str) -> BalancerTarget | None:
        """Return the target of a key, as for a client that has it; None after ``quorum_timeout`` if there is none.

        Checkpoint: always.  Cancellation: the key may have its target.
        Raises:
            NotFoundError: the broker has no such balancer.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        values = await self._context.ask("balancer_target", name=self.name, key=_text("key", key))
        if not values.get("found"):
            return None
        return BalancerTarget(url=values["url"], node_id=values.get("node_id", ""), local=bool(values.get("local")))

    async def explain_route(self, key: str) -> BalancerRoute:
        """Explain where a client with a key would go now, and why; nothing changes.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            NotFoundError: the broker has no such balancer.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        about = {"name": self.name, "key": _text("key", key)}
        values, rows = await self._context.pages("explain_balancer", ("step",), **about)
        return BalancerRoute.of(values, [row["step"] for row in rows])

    async def statistics(self) -> BalancerStatistics:
        """Return the state, the counters and the targets of the balancer.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            NotFoundError: the broker has no such balancer.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        names = tuple(field.name for field in attrs.fields(BalancerTargetStatistics))
        values, rows = await self._context.pages("balancer_targets", names, name=self.name)
        return BalancerStatistics.of(values, rows)

    async def set_local_target_filter(self, text: str | None) -> None:
        """Set the filter of the keys that stay at the broker, for connections from now on, until it is restarted.

        Checkpoint: always.  Cancellation: it may hold afterwards or not.
        Raises:
            SettingsError: it is no expression, or one that could take long.
            NotFoundError: the broker has no such balancer.
            UsageError: it is None, and the balancer has no pool.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        await self._set("local_target_filter", text)

    async def set_target_key_filter(self, text: str | None) -> None:
        """Set the filter of keys, for connections from now on, until the broker is restarted; no key is remembered.

        Checkpoint: always.  Cancellation: it may hold afterwards or not.
        Raises:
            SettingsError: it is no expression, or one that could take long.
            NotFoundError: the broker has no such balancer.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        await self._set("target_key_filter", text)

    async def _set(self, setting: str, text: str | None) -> None:
        if text is not None:
            KeyFilter(setting, text)
        await self._context.ask("set_balancer_filter", name=self.name, setting=setting, text=text)


def _text(setting: str, value: str) -> str:
    if type(value) is not str or len(value) > _TEXT_CHARACTERS_MAX:
        raise SettingsError(setting, value, f"a text of at most {_TEXT_CHARACTERS_MAX} characters")
    return value
