"""Read the token of a server from the file that an option names."""

from pathlib import Path

from timerstore.errors import ConfigError


def read_token(file: str | Path) -> str:
    """Return the token in a file. ConfigError if it cannot be read, or is no text."""
    try:
        return Path(file).read_text("utf-8").strip()
    except OSError as error:
        raise ConfigError(f"token_file: it cannot be read ({error})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"token_file: wanted a text, got other bytes; at {file}") from error
