"""Draw the timing wheel as text: a ring of time units with the current time and pending messages.

  · ● ·        The ring has 60 seconds or minutes, or 24 hours, clockwise from the top.
·       ·
◆  text ●      ◆  the current time
·       ·      ·  no message is due
  · · ·        ∙ • ●  few, more or most messages are due within the next turn
"""

import math
from collections.abc import Sequence

from rich.text import Text

_GLYPHS = "∙•●"
_STYLES = ("cyan", "bold cyan", "bold yellow")
_EMPTY, _NOW = "·", "◆"


def draw(
    counts: Sequence[int], now: int, middle: Sequence[str], *, width: int, height: int
) -> Text:
    """Draw a ring. `now` is the index of the current time, `middle` the lines of text inside."""
    cells: dict[tuple[int, int], tuple[str, str]] = {}
    top = max(counts, default=0)
    # The largest count is drawn last, so that it is visible if two places share a cell.
    for place in sorted(range(len(counts)), key=lambda k: (k == now, counts[k])):
        angle = 2 * math.pi * place / len(counts)
        x = round((width - 1) / 2 * (1 + math.sin(angle)))
        y = round((height - 1) / 2 * (1 - math.cos(angle)))
        cells[y, x] = (_NOW, "bold green") if place == now else _glyph(counts[place], top)
    text = Text(no_wrap=True)
    first = (height - len(middle)) // 2
    for y in range(height):
        inside = middle[y - first] if first <= y < first + len(middle) else ""
        begin = (width - len(inside)) // 2
        for x in range(width):
            glyph, style = cells.get((y, x), (" ", ""))
            if begin <= x < begin + len(inside) and glyph == " ":
                glyph, style = inside[x - begin], "bold" if y == first else ""
            text.append(glyph, style)
        text.append("\n")
    text.right_crop(1)
    return text


def _glyph(count: int, top: int) -> tuple[str, str]:
    if not count:
        return _EMPTY, "dim"
    # The scale is logarithmic, so that one message is visible next to a million.
    share = math.log1p(count) / math.log1p(top)
    step = min(len(_GLYPHS) - 1, int(share * len(_GLYPHS)))
    return _GLYPHS[step], _STYLES[step]
