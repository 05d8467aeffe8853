"""Transactions, and the decisions about prepared transactions."""
