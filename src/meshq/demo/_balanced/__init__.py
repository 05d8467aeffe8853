"""The demo of balancers."""

from meshq.demo._balanced._run import DEVICES, KILLED, Spread, parse_devices, run_balanced, run_target, table

__all__ = ["DEVICES", "KILLED", "Spread", "parse_devices", "run_balanced", "run_target", "table"]
