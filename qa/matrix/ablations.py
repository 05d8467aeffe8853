"""How each feature of the delivery matrix is switched off in a copy of the product: a change of a line or two.

A switch that is ``lasting`` has the feature work, and not outlive its broker.
"""

from __future__ import annotations

from typing import Final

import attrs

from qa.seeded.bug import Bug


@attrs.frozen(kw_only=True)
class Switch:
    """One way of switching features off."""

    #: What does not work any more; what uses it may fail, too.
    features: tuple[str, ...]
    #: Only across a restart.
    lasting: bool = False
    file: str
    old: str
    new: str

    @property
    def name(self) -> str:
        """What it is called."""
        names = ", ".join(self.features)
        return f"{names}, across a restart" if self.lasting else names

    @property
    def bug(self) -> Bug:
        """The change."""
        return Bug(name=self.name, file=self.file, old=self.old, new=self.new, checkers=())


SWITCHES: Final = (
    Switch(
        features=("priority",),
        file="broker/queue/_queue_machine.py",
        old="        return self._main if traits is None or self.forwards else self.level(traits.priority)\n",
        new="        return self._main\n",
    ),
    Switch(
        features=("delay",),
        file="broker/queue/_delivery_options.py",
        old="    return RowTraits(priority, arrival_ms + delay if delay else 0, ",
        new="    return RowTraits(priority, 0, ",
    ),
    Switch(
        features=("time to live",),
        file="broker/queue/_delivery_options.py",
        old="arrival_ms + ttl if ttl else 0, group)\n",
        new="0, group)\n",
    ),
    Switch(
        features=("expiry address",),
        file="broker/queue/_queue_machine.py",
        old='settings.expiry_address if reason == "expired" else settings.dead_letter_address\n',
        new='None if reason == "expired" else settings.dead_letter_address\n',
    ),
    Switch(
        features=("dead letters",),
        file="broker/queue/_queue_machine.py",
        old='settings.expiry_address if reason == "expired" else settings.dead_letter_address\n',
        new='settings.expiry_address if reason == "expired" else None\n',
    ),
    Switch(
        features=("maximum deliveries",),
        file="broker/settlement/_redelivery.py",
        old="    return queue.settings.max_delivery_attempts\n",
        new="    return math.inf\n",
    ),
    Switch(
        features=("redelivery delay",),
        file="broker/settlement/_redelivery.py",
        old="        delay = settings.redelivery_delay * settings.redelivery_delay_multiplier ** (count - 1)\n",
        new="        delay = 0.0\n",
    ),
    Switch(
        features=("growing redelivery delay",),
        file="broker/settlement/_redelivery.py",
        old="        delay = settings.redelivery_delay * settings.redelivery_delay_multiplier ** (count - 1)\n",
        new="        delay = settings.redelivery_delay\n",
    ),
    Switch(
        features=("longest redelivery delay",),
        file="broker/settlement/_redelivery.py",
        old="    return round(min(delay, settings.max_redelivery_delay, limits.TIME_S_MAX) * 1000)\n",
        new="    return round(min(delay, limits.TIME_S_MAX) * 1000)\n",
    ),
    Switch(
        features=("delay of who hands back",),
        file="broker/session/_session.py",
        old="            delay_ms = frame.stamp - 1 if frame.stamp else None\n",
        new="            delay_ms = None\n",
    ),
    Switch(
        features=("redelivery delay", "delay of who hands back", "maximum deliveries"),
        lasting=True,
        file="broker/_recovery.py",
        old="                core.returner.restore(queue, view, self._counts[view])\n",
        new="                pass\n",
    ),
    Switch(
        features=("delivery counts",),
        file="broker/session/_deliveries.py",
        old="        counts = _delivery_counts(grant)\n",
        new="        counts = ()\n",
    ),
    Switch(
        features=("duplicate ids",),
        file="broker/ingress/_ingress.py",
        old="        if kinds & KIND_ID and address.duplicates.capacity:\n",
        new="        if kinds & KIND_ID and not address.duplicates.capacity:\n",
    ),
    Switch(
        features=("duplicate ids",),
        lasting=True,
        file="broker/_recovery.py",
        old="                gone += address.duplicates.add(chunk)\n",
        new="                gone += [chunk.record] if chunk.record else []\n",
    ),
    Switch(
        features=("queue filter",),
        file="broker/ingress/_distribution.py",
        old="    if any(queue.terms.filter is not None for queue in queues):\n",
        new="    if False:\n",
    ),
    Switch(
        features=("queue filter",),
        lasting=True,
        file="broker/_definitions.py",
        old='                filter = _kept_filter(values["filter"], position)\n',
        new="                filter = None\n",
    ),
    Switch(
        features=("consumer filter",),
        file="broker/session/_session.py",
        old="            consumer.filter, consumer.priority, consumer.exclusive = filter, priority, header.exclusive\n",
        new="            consumer.filter, consumer.priority, consumer.exclusive = None, priority, header.exclusive\n",
    ),
    Switch(
        features=("subscription without a name",),
        file="broker/session/_subscriptions.py",
        old='            name = f"${session.core.settings.token(IDENTITY_BYTES).hex()}"\n',
        new='            name = "$own"\n',
    ),
    Switch(
        features=("named subscription",),
        file="broker/session/_subscriptions.py",
        old='    if terms.subscription in ("own", "single") and queue.consumers and not browse:\n',
        new='    if terms.subscription == "own" and queue.consumers and not browse:\n',
    ),
    Switch(
        features=("durable subscription",),
        file="broker/session/_subscriptions.py",
        old="durable=wanted.durable, filter=filter\n",
        new="durable=False, filter=filter\n",
    ),
    Switch(
        features=("durable subscription",),
        lasting=True,
        file="broker/_definitions.py",
        old='        "subscription": queue.terms.subscription,\n',
        new='        "subscription": "",\n',
    ),
    Switch(
        features=("shared subscription",),
        file="client/_patterns.py",
        old='    return Subscription("shared" if shared else "single", ',
        new='    return Subscription("single", ',
    ),
    Switch(
        features=("temporary queue",),
        file="broker/queue/_queue_machine.py",
        old="        self.passing = terms.owner is not None or (bool(terms.subscription) and not durable)\n",
        new="        self.passing = bool(terms.subscription) and not durable\n",
    ),
    Switch(
        features=("request and reply",),
        file="client/_delivery.py",
        old='        keywords.setdefault("correlation_id", answered)\n',
        new="",
    ),
    Switch(
        features=("auto-delete",),
        file="broker/ingress/_router.py",
        old="            queue.passing = queue.settings.auto_delete_queues\n",
        new="            queue.passing = False\n",
    ),
    Switch(
        features=("auto-delete",),
        lasting=True,
        file="broker/_definitions.py",
        old='        "on_use": queue.terms.on_use,\n',
        new='        "on_use": False,\n',
    ),
    Switch(
        features=("divert",),
        file="broker/ingress/_ingress.py",
        old="        diverted = only is None and address.name in self._diverts.from_address\n        special",
        new="        diverted = False\n        special",
    ),
    Switch(
        features=("divert",),
        lasting=True,
        file="broker/_definitions.py",
        old="            self._router.diverts.add(_divert_of(values, position))\n",
        new="            pass\n",
    ),
    Switch(
        features=("exclusive divert",),
        file="broker/ingress/_ingress.py",
        old="                        if rule.exclusive:\n",
        new="                        if False:\n",
    ),
    Switch(
        features=("filtered divert",),
        file="broker/ingress/_ingress.py",
        old="                    if takes(rule.filter, row, wants):\n",
        new="                    if takes(None, row, wants):\n",
    ),
    Switch(
        features=("pause and resume",),
        file="broker/queue/_queue_machine.py",
        old="        if self.paused or (self._handing_over and self._held_by_others()):\n",
        new="        if self._handing_over and self._held_by_others():\n",
    ),
    Switch(
        features=("pause and resume",),
        lasting=True,
        file="broker/_definitions.py",
        old='            queue.paused = values["paused"]\n',
        new="            queue.paused = False\n",
    ),
    Switch(
        features=("purge",),
        file="broker/session/_operations.py",
        old="    removed = core.settler.purge(queue)\n",
        new="    removed = 0\n",
    ),
    Switch(
        features=("message groups",),
        file="broker/queue/_delivery_options.py",
        old=" if ttl else 0, group)\n",
        new=" if ttl else 0, None)\n",
    ),
    Switch(
        features=("group rebalance",),
        file="broker/queue/_queue_machine.py",
        old="            if self.settings.default_group_rebalance:\n",
        new="            if False:\n",
    ),
    Switch(
        features=("consumer priority",),
        file="broker/session/_session.py",
        old="            consumer.filter, consumer.priority, consumer.exclusive = filter, priority, header.exclusive\n",
        new="            consumer.filter, consumer.priority, consumer.exclusive = filter, 0, header.exclusive\n",
    ),
    Switch(
        features=("exclusive consumer",),
        file="broker/session/_session.py",
        old="            consumer.filter, consumer.priority, consumer.exclusive = filter, priority, header.exclusive\n",
        new="            consumer.filter, consumer.priority, consumer.exclusive = filter, priority, False\n",
    ),
    Switch(
        features=("exclusive by default",),
        file="broker/queue/_queue_machine.py",
        old="        consumer.exclusive = consumer.exclusive or self.settings.default_exclusive\n",
        new="        consumer.exclusive = bool(consumer.exclusive)\n",
    ),
    Switch(
        features=("moving messages",),
        file="broker/session/_operations.py",
        old='limit or _ALL, to_address(address), "moved", asker=asker)\n',
        new='limit or _ALL, lambda view: None, "moved", asker=asker)\n',
    ),
    Switch(
        features=("sending dead letters back",),
        file="broker/session/_bulk_move.py",
        old="        target = _way_back(core, origin) if origin is not None else None\n",
        new="        target = None\n",
    ),
    Switch(
        features=("settings at run time",),
        file="broker/ingress/_settings_table.py",
        old="        found = settings_for({**self._given, **self.set} if self.set else self._given, address)\n",
        new="        found = settings_for(self._given, address)\n",
    ),
    Switch(
        features=("settings at run time",),
        lasting=True,
        file="broker/_definitions.py",
        old='            self._router.table.put(values["pattern"], settings, position)\n',
        new="            pass\n",
    ),
    Switch(
        features=("browsing",),
        file="broker/session/_session.py",
        old="            if header.browse:\n",
        new="            if False:\n",
    ),
    Switch(
        features=("last value",),
        file="broker/ingress/_router.py",
        old="        if key is None or queue.forwards:\n",
        new="        if key is None or not queue.forwards:\n",
    ),
    Switch(
        features=("transaction (sends)",),
        file="broker/transactions/_transaction_manager.py",
        old="            core.placer.place(run, target, kinds, _nothing, weighed=True)\n",
        new="            pass\n",
    ),
    Switch(
        features=("transaction (acknowledgements)",),
        file="broker/transactions/_transaction_manager.py",
        old="            later += core.settler.settle_together(queue, spans)\n",
        new="            core.returner.return_spans(queue, spans)\n",
    ),
    Switch(
        features=("rollback",),
        file="broker/transactions/_transaction_manager.py",
        old="            self._core.returner.return_spans(queue, spans)\n",
        new="            self._core.settler.settle_together(queue, spans)\n",
    ),
    Switch(
        features=("prepared transaction",),
        file="broker/transactions/_two_phase.py",
        old="            with core.ledger.together(self._weigh(prepared)):\n                self._write(prepared)\n",
        new="            return self._transactions.commit(transaction)\n",
    ),
    Switch(
        features=("prepared transaction",),
        lasting=True,
        file="broker/transactions/_transaction_recovery.py",
        old="            self._core.transactions.two_phase.take_up(prepared)\n",
        new="            pass\n",
    ),
)
