"""The provider that asks an ensemble of ZooKeeper."""

from meshq.ha.quorum.zookeeper._zookeeper_quorum import ZooKeeperQuorum, ZooKeeperSession

__all__ = ["ZooKeeperQuorum", "ZooKeeperSession"]
