"""The history of a simulated run, and the checkers that compare the history with the promises of meshq."""
