"""Proofs about the journal: a model, all images of a crash, all flipped bits."""
