"""A certificate for this machine, and the file of a token."""

import subprocess
from pathlib import Path
from typing import NamedTuple

TOKEN = "a token of these tests"


class Secrets(NamedTuple):
    cert: Path
    key: Path
    token: Path


def make_secrets(folder: Path) -> Secrets:
    """Make the files of a server that is reached as localhost or 127.0.0.1."""
    made = Secrets(folder / "cert.pem", folder / "key.pem", folder / "token")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", made.key, "-out", made.cert, "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    made.token.write_text(f"{TOKEN}\n")
    made.token.chmod(0o600)
    return made


def make_authority(folder: Path) -> Path:
    """Make the files as make_secrets, with a certificate that an authority has signed.

    Return the authority's certificate. The client for Rust accepts none that is its own authority.
    """
    made = make_secrets(folder)
    authority, key, request = (folder / name for name in ("ca.pem", "ca.key", "request.pem"))
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for words in (
        ["req", "-x509", *ec, "-keyout", key, "-out", authority, "-days", "2", "-subj", "/CN=ca"],
        ["req", *ec, "-keyout", made.key, "-out", request, "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        ["x509", "-req", "-in", request, "-CA", authority, "-CAkey", key, "-CAcreateserial",
         "-days", "2", "-copy_extensions", "copy", "-out", made.cert],
    ):  # fmt: skip
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    return authority
