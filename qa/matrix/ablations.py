"""The ablations of the delivery matrix: changes of a line or two, each of which switches features off.

An ablation that is ``lasting`` lets the feature work, but not across a restart of the broker.
"""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen(kw_only=True)
class Ablation:
    """A change of one function that switches features off."""

    #: The features that do not work any more.  Features that use them may fail, too.
    features: tuple[str, ...]
    #: The features fail across a restart only.
    lasting: bool = False
    #: A package and the qualified name of a function in it, as in ``meshq.broker:Session.close``.
    function: str
    #: A part of the function's source, moved to the left margin.
    old: str
    new: str

    @property
    def name(self) -> str:
        """The features' names."""
        names = ", ".join(self.features)
        return f"{names}, across a restart" if self.lasting else names


ABLATIONS: Final = (
    Ablation(
        features=("priority",),
        function="meshq.broker:Queue.list_for",
        old="self.lists.main if options is None or self.forwards else self.priority_list(options.priority)\n",
        new="self.lists.main\n",
    ),
    Ablation(
        features=("delay",),
        function="meshq.broker:_controlled",
        old="    return RowOptions(priority, arrival_ms + delay if delay else 0, ",
        new="    return RowOptions(priority, 0, ",
    ),
    Ablation(
        features=("time to live",),
        function="meshq.broker:_controlled",
        old="arrival_ms + ttl if ttl else 0, group)\n",
        new="0, group)\n",
    ),
    Ablation(
        features=("expiry address",),
        function="meshq.broker:Queue.target_of",
        old='settings.expiry_address if reason == "expired" else settings.dead_letter_address\n',
        new='None if reason == "expired" else settings.dead_letter_address\n',
    ),
    Ablation(
        features=("dead letters",),
        function="meshq.broker:Queue.target_of",
        old='settings.expiry_address if reason == "expired" else settings.dead_letter_address\n',
        new='settings.expiry_address if reason == "expired" else None\n',
    ),
    Ablation(
        features=("maximum deliveries",),
        function="meshq.broker:_most",
        old="    return queue.settings.max_delivery_attempts\n",
        new="    return math.inf\n",
    ),
    Ablation(
        features=("redelivery delay",),
        function="meshq.broker:_delay_ms",
        old="        delay = settings.redelivery_delay * settings.redelivery_delay_multiplier ** (count - 1)\n",
        new="        delay = 0.0\n",
    ),
    Ablation(
        features=("growing redelivery delay",),
        function="meshq.broker:_delay_ms",
        old="        delay = settings.redelivery_delay * settings.redelivery_delay_multiplier ** (count - 1)\n",
        new="        delay = settings.redelivery_delay\n",
    ),
    Ablation(
        features=("longest redelivery delay",),
        function="meshq.broker:_delay_ms",
        old="    return round(min(delay, settings.max_redelivery_delay, limits.TIME_S_MAX) * 1000)\n",
        new="    return round(min(delay, limits.TIME_S_MAX) * 1000)\n",
    ),
    Ablation(
        features=("delay of who hands back",),
        function="meshq.broker:SessionConsumers.settle",
        old="        delay_ms = frame.stamp - 1 if frame.stamp else None\n",
        new="        delay_ms = None\n",
    ),
    Ablation(
        features=("redelivery delay", "delay of who hands back", "maximum deliveries"),
        lasting=True,
        function="meshq.broker:Recovery._finish",
        old="            self._redelivery.restore(queue, view, self._counts[view])\n",
        new="            pass\n",
    ),
    Ablation(
        features=("delivery counts",),
        function="meshq.broker:delivery",
        old="        counts = _delivery_counts(dispatch)\n",
        new="        counts = ()\n",
    ),
    Ablation(
        features=("duplicate ids",),
        function="meshq.broker:Ingress.place",
        old="    if kinds & KIND_ID and address.duplicates.capacity:\n",
        new="    if kinds & KIND_ID and not address.duplicates.capacity:\n",
    ),
    Ablation(
        features=("duplicate ids",),
        lasting=True,
        function="meshq.broker:Recovery._restore_ids",
        old="            gone += address.duplicates.add(chunk)\n",
        new="            gone += [chunk.record] if chunk.record else []\n",
    ),
    Ablation(
        features=("queue filter",),
        function="meshq.broker:deal",
        old="    if any(queue.spec.filter is not None for queue in queues):\n",
        new="    if False:\n",
    ),
    Ablation(
        features=("queue filter",),
        lasting=True,
        function="meshq.broker:Definitions.restore",
        old='            filter = kept_filter(values["filter"], position)\n',
        new="            filter = None\n",
    ),
    Ablation(
        features=("consumer filter",),
        function="meshq.broker:SessionConsumers.consume",
        old="        consumer.filter, consumer.priority, consumer.exclusive = filter, priority, header.exclusive\n",
        new="        consumer.filter, consumer.priority, consumer.exclusive = None, priority, header.exclusive\n",
    ),
    Ablation(
        features=("subscription without a name",),
        function="meshq.broker:queue_to_consume",
        old='            name = f"${token(IDENTITY_BYTES).hex()}"\n',
        new='            name = "$own"\n',
    ),
    Ablation(
        features=("named subscription",),
        function="meshq.broker:check_free",
        old='    if spec.subscription in ("own", "single") and queue.roster.consumers and not browse:\n',
        new='    if spec.subscription == "own" and queue.roster.consumers and not browse:\n',
    ),
    Ablation(
        features=("durable subscription",),
        function="meshq.broker:queue_to_consume",
        old="durable=wanted.durable,\n",
        new="durable=False,\n",
    ),
    Ablation(
        features=("durable subscription",),
        lasting=True,
        function="meshq.broker:_definition_of",
        old='        "subscription": queue.spec.subscription,\n',
        new='        "subscription": "",\n',
    ),
    Ablation(
        features=("shared subscription",),
        function="meshq.client:check_subscription",
        old='    return Subscription("shared" if shared else "single", ',
        new='    return Subscription("single", ',
    ),
    Ablation(
        features=("temporary queue",),
        function="meshq.broker:Queue.__init__",
        old="    self.auto_delete: bool = spec.owner is not None or (bool(spec.subscription) and not durable)\n",
        new="    self.auto_delete: bool = bool(spec.subscription) and not durable\n",
    ),
    Ablation(
        features=("request and reply",),
        function="meshq.client:ReceivedMessage._answer",
        old='    keywords.setdefault("correlation_id", answered)\n',
        new="",
    ),
    Ablation(
        features=("auto-delete",),
        function="meshq.broker:Router.rule",
        old="        queue.auto_delete = queue.settings.auto_delete_queues\n",
        new="        queue.auto_delete = False\n",
    ),
    Ablation(
        features=("auto-delete",),
        lasting=True,
        function="meshq.broker:_definition_of",
        old='        "on_use": queue.spec.auto_created,\n',
        new='        "on_use": False,\n',
    ),
    Ablation(
        features=("divert",),
        function="meshq.broker:Ingress.place",
        old="    diverted = only is None and address.name in self._diverts.from_address\n    special",
        new="    diverted = False\n    special",
    ),
    Ablation(
        features=("divert",),
        lasting=True,
        function="meshq.broker:DivertDefinitions.restore",
        old="    self._diverts.add(_divert_of(values, position))\n",
        new="    pass\n",
    ),
    Ablation(
        features=("exclusive divert",),
        function="meshq.broker:diverted_shares",
        old="                    if rule.exclusive:\n",
        new="                    if False:\n",
    ),
    Ablation(
        features=("filtered divert",),
        function="meshq.broker:diverted_shares",
        old="                if takes(rule.filter, row, wants):\n",
        new="                if takes(None, row, wants):\n",
    ),
    Ablation(
        features=("pause and resume",),
        function="meshq.broker:Queue.dispatch",
        old="    if self.paused or (only is None and self.roster.waits_for_others()):\n",
        new="    if only is None and self.roster.waits_for_others():\n",
    ),
    Ablation(
        features=("pause and resume",),
        lasting=True,
        function="meshq.broker:Definitions.restore",
        old='        queue.paused = values["paused"]\n',
        new="        queue.paused = False\n",
    ),
    Ablation(
        features=("purge",),
        function="meshq.broker:_purged",
        old="    removed = core.acknowledger.purge(queue)\n",
        new="    removed = 0\n",
    ),
    Ablation(
        features=("message groups",),
        function="meshq.broker:_controlled",
        old=" if ttl else 0, group)\n",
        new=" if ttl else 0, None)\n",
    ),
    Ablation(
        features=("group rebalance",),
        function="meshq.broker:Queue.serving_started",
        old="        if self.settings.default_group_rebalance:\n",
        new="        if False:\n",
    ),
    Ablation(
        features=("consumer priority",),
        function="meshq.broker:SessionConsumers.consume",
        old="        consumer.filter, consumer.priority, consumer.exclusive = filter, priority, header.exclusive\n",
        new="        consumer.filter, consumer.priority, consumer.exclusive = filter, 0, header.exclusive\n",
    ),
    Ablation(
        features=("exclusive consumer",),
        function="meshq.broker:SessionConsumers.consume",
        old="        consumer.filter, consumer.priority, consumer.exclusive = filter, priority, header.exclusive\n",
        new="        consumer.filter, consumer.priority, consumer.exclusive = filter, priority, False\n",
    ),
    Ablation(
        features=("exclusive by default",),
        function="meshq.broker:Queue.add_consumer",
        old="    consumer.exclusive = consumer.exclusive or self.settings.default_exclusive\n",
        new="    consumer.exclusive = bool(consumer.exclusive)\n",
    ),
    Ablation(
        features=("moving messages",),
        function="meshq.broker:move_messages",
        old='limit or _ALL, to_address(address), "moved", asker=asker)\n',
        new='limit or _ALL, lambda view: None, "moved", asker=asker)\n',
    ),
    Ablation(
        features=("sending dead letters back",),
        function="meshq.broker:to_origin",
        old="        target = _way_back(core, origin) if origin is not None else None\n",
        new="        target = None\n",
    ),
    Ablation(
        features=("settings at run time",),
        function="meshq.broker:SettingsTable.of",
        old="    found = settings_for({**self._given, **self.set} if self.set else self._given, address)\n",
        new="    found = settings_for(self._given, address)\n",
    ),
    Ablation(
        features=("settings at run time",),
        lasting=True,
        function="meshq.broker:SettingsDefinitions.restore",
        old='    self._router.table.put(values["pattern"], settings, position)\n',
        new="    pass\n",
    ),
    Ablation(
        features=("browsing",),
        function="meshq.broker:SessionConsumers.consume",
        old="        elif header.browse:\n",
        new="        elif False:\n",
    ),
    Ablation(
        features=("last value",),
        function="meshq.broker:Router.rule",
        old="None if queue.forwards or queue.roster.cursor else settings.default_last_value_key)\n",
        new="settings.default_last_value_key if queue.forwards else None)\n",
    ),
    Ablation(
        features=("transaction (sends)",),
        function="meshq.broker:TransactionManager.apply",
        old="        self._ingress.place(run, target, kinds, _nothing, weighed=True)\n",
        new="        pass\n",
    ),
    Ablation(
        features=("transaction (acknowledgements)",),
        function="meshq.broker:TransactionManager.apply",
        old="        later += self._acknowledger.settle_together(queue, spans)\n",
        new="        self._redelivery.return_spans(queue, spans)\n",
    ),
    Ablation(
        features=("rollback",),
        function="meshq.broker:TransactionManager.roll_back",
        old="        self._redelivery.return_spans(queue, spans)\n",
        new="        self._acknowledger.settle_together(queue, spans)\n",
    ),
    Ablation(
        features=("prepared transaction",),
        function="meshq.broker:TwoPhaseCommit.prepare",
        old="with self._release_queue.atomic_batch(self._weigh(prepared)):\n            self._write(prepared)\n",
        new="return self._transactions.commit(transaction)\n",
    ),
    Ablation(
        features=("prepared transaction",),
        lasting=True,
        function="meshq.broker:TransactionRecovery.finish",
        old="        self._two_phase.take_up(prepared)\n",
        new="        pass\n",
    ),
    Ablation(
        features=("batch of stages",),
        function="meshq.broker:LedgerMachine.verdict",
        old="    if sink in self.sinks and batch <= self.sinks[sink][0].batch:\n        return Verdict(already=True)\n",
        new="",
    ),
    Ablation(
        features=("cursor",),
        function="meshq.broker:CursorMachine.acknowledged",
        old="        self.facts = attrs.evolve(facts, processed=number, pinned=max(facts.pinned, number))\n",
        new="        pass\n",
    ),
    Ablation(
        features=("priorities and groups for a cursor",),
        function="meshq.broker:RangeBrowser._next",
        old="view.first < best.first",
        new="view.first > best.first",
    ),
    Ablation(
        features=("expiry under a cursor",),
        function="meshq.broker:CursorMachine.keeps",
        old="    return self.facts.start <= number < self.facts.pinned\n",
        new="    return False\n",
    ),
    Ablation(
        features=("queue of a cursor",),
        function="meshq.broker:refuse_if_held",
        old="    if cursor is not None:\n",
        new="    if False:\n",
    ),
)
