"""A client that dials again has the TLS context that it had, unless one of its files has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshq.env import OpenSslTls
from meshq.errors import SecurityError, SettingsError
from meshq.settings import TLS
from tests.env.authorities import Authority
from tests.env.test_tls import Files, shake


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_client_that_dials_again_reads_only_files_that_have_changed(files: Files, tmp_path: Path) -> None:
    tls = OpenSslTls()
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(Path(files.ours).read_bytes())
    believes = TLS(authorities=str(authorities))
    first = tls.client(believes)
    assert tls.client(TLS(authorities=str(authorities))) is first
    assert tls.client(TLS(authorities=files.ours)) is not first
    assert tls.client(None) is tls.client(None) is not first
    authorities.write_bytes(Path(files.ours).read_bytes() * 2)
    assert (second := tls.client(believes)) is not first and tls.client(believes) is second
    # Whatever is wrong is said each time.
    authorities.write_text("nothing", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(SettingsError, match="authorities"):
            tls.client(believes)
    authorities.unlink()
    with pytest.raises(SettingsError, match="authorities"):
        tls.client(believes)


async def test_a_client_that_dials_again_believes_who_is_believed_by_then(files: Files, tmp_path: Path) -> None:
    tls = OpenSslTls()
    server = tls.server(TLS(certificate=files.broker))
    authorities = tmp_path / "authorities.pem"
    believes = TLS(authorities=Authority("another one").write(authorities))
    refused, _, _ = await shake(server, tls.client(believes))
    assert isinstance(refused, SecurityError)
    authorities.write_bytes(Path(files.ours).read_bytes() + b"\n")
    assert await shake(server, tls.client(believes)) == (None, None, [b"hello"])


def test_contexts_that_are_kept_are_bounded(files: Files) -> None:
    tls = OpenSslTls()
    several = [Path(files.ours).parent / f"{number}.pem" for number in range(40)]
    for path in several:
        path.write_bytes(Path(files.ours).read_bytes())
    sides = [tls.client(TLS(authorities=str(path))) for path in several]
    assert tls.client(TLS(authorities=str(several[-1]))) is sides[-1]
    assert tls.client(TLS(authorities=str(several[0]))) is not sides[0]
