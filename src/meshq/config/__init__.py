"""A broker from a file in TOML: the same settings as in a program, under the same names."""

from meshq.config._dump import dump_config
from meshq.config._files import secret_in
from meshq.config._load import check_broker, load_broker, load_nodes

__all__ = ["check_broker", "dump_config", "load_broker", "load_nodes", "secret_in"]
