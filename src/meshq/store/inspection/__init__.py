"""Inspection of a store that is not open: accounting for every byte, and listing records."""
