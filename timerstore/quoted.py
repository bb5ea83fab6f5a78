"""What a caller gave, as an error shows it.

Holds:    it is one short text, whatever was given: an error that cannot be said hides the mistake.
"""

_CHARACTERS_MAX = 80
_TEXTS = (str, bytes, bytearray)


def quoted(value: object) -> str:
    """Show a value, in at most 80 characters."""
    if type(value) in _TEXTS and len(value) > _CHARACTERS_MAX:  # type: ignore[arg-type]
        value = value[:_CHARACTERS_MAX]  # type: ignore[index]  # not all of some MB
    try:
        text = repr(value)
    except ValueError:
        if type(value) is int:
            return f"a whole number of {value.bit_length()} bits"
        return f"{type(value).__name__} without a text"
    except Exception:  # noqa: BLE001 - a caller's own
        return f"{type(value).__name__} without a text"
    return text if len(text) <= _CHARACTERS_MAX else f"{text[: _CHARACTERS_MAX - 3]}..."


def typed(value: object) -> str:
    """Show what stands where another type was wanted: its own, and the value."""
    kind, text = type(value).__name__, quoted(value)
    return text if value is None or text.startswith(kind) else f"{kind} {text}"
