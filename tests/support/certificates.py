"""Certificates for tests: a CA, a server on this machine, a client."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
"""Keys of RSA take a hundred times as long to make."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files. The server's certificate is for `localhost`, and for no IP address."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make_certificates(folder: Path) -> Certificates:
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    _openssl(
        "req", "-x509", *NEW_KEY, "-keyout", ca_key, "-out", ca, "-days", "2",
        "-subj", "/CN=Callstream test CA", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip
    for name in ("server", "client"):
        request, key, certificate = folder / f"{name}.csr", folder / f"{name}.key", folder / f"{name}.pem"
        extensions = folder / f"{name}.ext"
        extensions.write_text(
            "basicConstraints=CA:FALSE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
            + ("subjectAltName=DNS:localhost\n" if name == "server" else "")
        )
        _openssl("req", "-new", *NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        _openssl(
            "x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2",
            "-extfile", extensions, "-out", certificate,
        )  # fmt: skip
    return Certificates(ca, folder / "server.pem", folder / "server.key", folder / "client.pem", folder / "client.key")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
