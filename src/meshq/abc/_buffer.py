"""Bytes, wherever they lie."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
