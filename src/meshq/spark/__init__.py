"""Spark reads queues and writes to addresses: ``format("meshq")``, and what a program calls beside that.

Importing this loads neither Spark nor Arrow.
"""
