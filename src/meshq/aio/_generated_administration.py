"""The calls of a client that create, delete and inspect queues and the like, and the calls of transactions.

Drawn by ``python -m tools.draw_faces`` from ``meshq.Client``: change that.
"""

from __future__ import annotations

from typing import Final

from meshq import client as trio_client
from meshq.aio._block_runner import TaskBlockRunner
from meshq.aio._loop_thread import TaskCall, forwarded
from meshq.aio._transaction import Transaction


class AdministrationCalls:
    """The calls of a client that create, delete and inspect queues and the like, and the calls of transactions.

    Each is sent once.  ``CallTimeoutError``, ``UnblockedError`` and ``ConnectionBrokenError`` say in ``outcome``
    whether it may have been carried out; repeating it does no harm.
    """

    _inner: trio_client.Client
    _call: TaskCall
    _block: TaskBlockRunner

    address_settings: Final = forwarded(trio_client.Client.address_settings)
    bridges: Final = forwarded(trio_client.Client.bridges)
    broker: Final = forwarded(trio_client.Client.broker)
    cluster_queue: Final = forwarded(trio_client.Client.cluster_queue)
    commit: Final = forwarded(trio_client.Client.commit)
    create_address: Final = forwarded(trio_client.Client.create_address)
    create_divert: Final = forwarded(trio_client.Client.create_divert)
    create_queue: Final = forwarded(trio_client.Client.create_queue)
    create_temporary_queue: Final = forwarded(trio_client.Client.create_temporary_queue)
    delete_divert: Final = forwarded(trio_client.Client.delete_divert)
    delete_queue: Final = forwarded(trio_client.Client.delete_queue)
    diverts: Final = forwarded(trio_client.Client.diverts)
    explain_route: Final = forwarded(trio_client.Client.explain_route)
    give_back: Final = forwarded(trio_client.Client.give_back)
    move_messages: Final = forwarded(trio_client.Client.move_messages)
    pause_bridge: Final = forwarded(trio_client.Client.pause_bridge)
    pause_queue: Final = forwarded(trio_client.Client.pause_queue)
    prepared: Final = forwarded(trio_client.Client.prepared)
    purge_queue: Final = forwarded(trio_client.Client.purge_queue)
    queue: Final = forwarded(trio_client.Client.queue)
    queues: Final = forwarded(trio_client.Client.queues)
    recover: Final = forwarded(trio_client.Client.recover)
    redrive: Final = forwarded(trio_client.Client.redrive)
    remove_address_settings: Final = forwarded(trio_client.Client.remove_address_settings)
    resume_bridge: Final = forwarded(trio_client.Client.resume_bridge)
    resume_queue: Final = forwarded(trio_client.Client.resume_queue)
    rollback: Final = forwarded(trio_client.Client.rollback)
    set_address_settings: Final = forwarded(trio_client.Client.set_address_settings)
    stuck: Final = forwarded(trio_client.Client.stuck)
    trace: Final = forwarded(trio_client.Client.trace)

    def transaction(self, xid: bytes | None = None) -> Transaction:
        """Create a transaction, to be used as ``async with``: sends and acknowledgements are applied together or not at
        all.

        ``xid``: 1 to 128 bytes by which it is known once it is prepared.

        Raises:
            SettingsError: the xid is none.
        """
        inner = self._inner.transaction(xid)
        return Transaction(self._block, inner)

    unsubscribe: Final = forwarded(trio_client.Client.unsubscribe)
