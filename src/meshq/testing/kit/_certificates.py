"""Certificates for tests: an authority that lives as long as the run of the tests, and the certificates of hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trustme

from meshq.errors import SettingsError
from meshq.settings import TLS

#: The names of this machine that every test may dial.
HERE: Final = ("localhost", "127.0.0.1", "::1")


class Certificates:
    """An authority for tests, and certificates that it has issued; made by the fixture ``meshq_tls``.

    ``server`` is for an acceptor of a broker at this machine, ``client`` for those who dial it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA(organization_name="meshq tests")
        self._issued = 0
        #: The path of the authority's own certificate.
        self.authorities: str = str(folder / "authorities.pem")
        self._authority.cert_pem.write_to_path(self.authorities)
        #: The TLS settings of a broker at ``localhost``, ``127.0.0.1`` or ``::1``.
        self.server: TLS = self.issue(*HERE)
        #: The TLS settings of a client, who shows no certificate, and believes the authority.
        self.client: TLS = TLS(authorities=self.authorities)

    def __repr__(self) -> str:
        return f"<Certificates {self.authorities}>"

    def issue(self, *hosts: str, common_name: str | None = None) -> TLS:
        """Return the settings of one more side: a certificate for these hosts, its key, and the authority.

        ``common_name``: what ``Security(certificates={"CN=...": user})`` asks for.

        Raises:
            SettingsError: no host is given, or one is no text.
        """
        if not hosts or not all(type(host) is str and host for host in hosts):
            raise SettingsError("hosts", hosts, "names or addresses of hosts, at least one")
        if common_name is not None and (type(common_name) is not str or not common_name):
            raise SettingsError("common_name", common_name, "a text, or None")
        try:
            issued = self._authority.issue_cert(*hosts, common_name=common_name)
        except (ValueError, UnicodeError) as error:
            raise SettingsError("hosts", hosts, f"names or addresses of hosts; {error}") from error
        self._issued += 1
        path = self._folder / f"certificate-{self._issued}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(str(path))
        return TLS(certificate=str(path), authorities=self.authorities)
