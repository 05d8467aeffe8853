"""A workload in which features of delivery meet on one queue, so that every pair of features has run together."""
