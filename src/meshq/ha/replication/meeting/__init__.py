"""Nodes of a pair that meet: questions and answers, the standpoints that they show, and which of them may serve."""
