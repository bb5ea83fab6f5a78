"""The files of a server's access: a certificate chain and its key in PEM, and files of secrets.

Raises: ConfigError for files that cannot be used, and for secrets that others can read.
"""

import os
import ssl
from pathlib import Path

from timerstore._engine.storage.anchor import absolute_path
from timerstore.errors import ConfigError


def tls_files(cert: str | os.PathLike[str], key: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Return the paths of a certificate chain and its key."""
    return absolute_path("tls_cert", cert), absolute_path("tls_key", key)


def tls_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS settings of a server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_cert, tls_key: cannot be used ({error}); at {cert}") from error
    return context


def read_secrets(name: str, path: str | os.PathLike[str]) -> tuple[Path, str]:
    """Return the path and the text of a file that only its owner can read.

    name: of the argument, for the text of an error.
    """
    file = absolute_path(name, path)
    try:
        mode = file.stat().st_mode
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot read {file} ({error})") from error
    if mode & 0o077:
        raise ConfigError(
            f"{name}: wanted a file that only its owner can read (chmod 600), got mode "
            f"{mode & 0o777:o}; at {file}"
        )
    return file, text
