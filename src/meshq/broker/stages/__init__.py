"""Decisions about stages and the batch ledger; pure."""
