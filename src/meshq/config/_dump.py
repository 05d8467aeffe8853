"""Writes the file that describes a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from meshq.ha import QuorumNode
    from meshq.node import Broker


def dump_config(*nodes: Broker | QuorumNode, secrets: Literal["env", "text"] = "env") -> str:
    """Return the text of a configuration file that describes a broker, a witness of a quorum, or one of each.

    A broker that is read from the file has equal settings.  A setting that has its default is left out, and so is what
    was changed while the broker ran.

    ``secrets``: ``"env"`` writes no password and no key, but the name of a variable of the environment for each, which
    has to be set when the file is read; the first lines of the text list the names.  ``"text"`` writes passwords and
    keys as they are, for everybody who can read the file; a URL with a password in it needs that.

    Raises:
        SettingsError: a setting can't stand in a file, such as a function, a policy of your own or an ssl.SSLContext.
    """
    from meshq.config._writer import written

    return written(nodes, secrets)
