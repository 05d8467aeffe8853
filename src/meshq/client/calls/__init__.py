"""Calls and their answers: completions, blocks, slots, and the errors of lost links."""
