"""The real outside world: the implementations of ``meshq.abc`` that production runs on."""

from meshq.env._datagrams import UdpDatagrams, UdpSocket
from meshq.env._disk import RealDisk, RealFile
from meshq.env._fault_injecting_disk import FaultInjectingDisk
from meshq.env._host_limits import descriptors, forks, memory_bytes
from meshq.env._network import TcpListener, TcpNetwork, TcpStream
from meshq.env._real_env import DEFAULT_ENV, default_env, real_env
from meshq.env._threads import WorkerThreads
from meshq.env._tls import OpenSslTls, client_context
from meshq.env._tls_stream import TlsStream

__all__ = [
    "DEFAULT_ENV",
    "FaultInjectingDisk",
    "OpenSslTls",
    "RealDisk",
    "RealFile",
    "TcpListener",
    "TcpNetwork",
    "TcpStream",
    "TlsStream",
    "UdpDatagrams",
    "UdpSocket",
    "WorkerThreads",
    "client_context",
    "default_env",
    "descriptors",
    "forks",
    "memory_bytes",
    "real_env",
]
