"""The fates of the messages of a run."""

from __future__ import annotations

from collections.abc import Iterable

from qa.grouping_model.clockwork import Clockwork
from qa.grouping_model.queues import ModelMessage


class Fates:
    """The messages that were sent, consumed and deleted."""

    def __init__(self, clockwork: Clockwork) -> None:
        self._clockwork = clockwork
        self.sent: dict[int, ModelMessage] = {}
        #: The places at which messages were consumed, in that order.
        self.order: list[tuple[str, ModelMessage]] = []
        self._done: set[int] = set()

    def send(self, group: str, place: str) -> ModelMessage:
        """Return a new message."""
        message = ModelMessage(len(self.sent), group, place)
        self.sent[message.uid] = message
        return message

    def consumed(self, place: str, message: ModelMessage) -> None:
        """Note that a consumer is done with a message."""
        self._done.add(message.uid)
        self.order.append((place, message))
        self._clockwork.note(f"{place} has consumed {message.uid} of {message.group}")

    def deleted(self, messages: Iterable[ModelMessage]) -> None:
        """Note messages whose queue was deleted."""
        self._done.update(message.uid for message in messages)

    def missing(self, messages: Iterable[ModelMessage]) -> list[ModelMessage]:
        """Return the messages that are neither consumed nor deleted."""
        return [message for message in messages if message.uid not in self._done]
