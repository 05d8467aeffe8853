"""A broker from a file in TOML: the same settings as in a program, under the same names."""

from meshq.config._load import load_broker

__all__ = ["load_broker"]
