"""Reading one batch of a segment, proven by its tag."""

from __future__ import annotations

from meshq.abc import File
from meshq.errors import DamagedError
from meshq.store.formats._batch_format import HEAD_BYTES, BatchHeader, decode_head, open_batch
from meshq.store.formats._segment_format import SegmentKeys


def read_batch(file: File, path: str, keys: SegmentKeys, offset: int) -> tuple[memoryview, BatchHeader]:
    """Read and prove a batch; return its bytes, and its header as if the batch began the file.

    Raises:
        DamagedError: the bytes are not what was written.
        OSError: the disk failed.
    """
    header = decode_head(keys, file.read_at(offset, HEAD_BYTES), offset, base=offset)
    size = header.end - offset if header is not None else 0
    data = memoryview(bytearray(file.read_at(offset, size)))
    header = decode_head(keys, data, offset, base=offset)
    if header is None or len(data) < size:
        raise DamagedError(path, offset, "a batch that was durable", f"{len(data)} bytes")
    header = header._replace(offset=0)
    if not open_batch(keys, data, header):
        raise DamagedError(path, offset, f"a batch with tag {header.tag.hex()}", "other bytes")
    return data, header
