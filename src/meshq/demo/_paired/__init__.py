"""The demo of a pair with a shared store."""

from meshq.demo._paired._run import Change, PairTally, pair_table, parse_paired, run_pair_member, run_paired

__all__ = ["Change", "PairTally", "pair_table", "parse_paired", "run_pair_member", "run_paired"]
