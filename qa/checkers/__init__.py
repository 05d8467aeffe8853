"""The history of a simulated run, and the checkers that compare it with what meshq promises."""
