"""Mark the names of arguments in docstrings, which describe each in a paragraph of its own."""

import re

import griffe

_ARGUMENT = re.compile(r"^((?:    )?)([a-z_]+(?:, [a-z_]+)*): ", re.MULTILINE)


def marked(text: str) -> str:
    """Return a docstring with bold names; indented arguments become a list."""
    described, raises, rest = text.partition("\nRaises:\n")
    return _ARGUMENT.sub(_marked, described) + raises + rest


def _marked(found: re.Match[str]) -> str:
    return f"\n- **{found[2]}**: " if found[1] else f"**{found[2]}**: "


class NamedArguments(griffe.Extension):
    """Changes each docstring when it is read."""

    def on_object(self, *, obj: griffe.Object, **_given: object) -> None:
        """Change one."""
        if obj.docstring is not None:
            obj.docstring.value = marked(obj.docstring.value)
