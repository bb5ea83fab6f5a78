"""The wheel as text: places on a ring, a hand that goes round, what waits at each place.

  · ● ·
·       ·      60 places, clockwise from the top: of seconds, minutes, or 24 of hours;
◆  text ●      ◆ now, · nothing, ∙ to ● how much is due there within the next turn
·       ·
  · · ·
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
    """Draw a ring; `now`: the place of the hand."""
    cells: dict[tuple[int, int], tuple[str, str]] = {}
    top = max(counts, default=0)
    # The fullest last, so that where two places share a cell it is the one that is seen.
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
    share = math.log1p(count) / math.log1p(top)  # by size of the number: one beside a million shows
    step = min(len(_GLYPHS) - 1, int(share * len(_GLYPHS)))
    return _GLYPHS[step], _STYLES[step]
