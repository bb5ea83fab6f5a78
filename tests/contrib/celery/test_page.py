"""The guide page says what the code has."""

from tests.support.snippets import GUIDES
from timerstore.contrib.celery.not_offered import NOT_OFFERED


def test_page_lists_what_is_not_offered_with_its_reasons() -> None:
    text = (GUIDES / "celery.md").read_text().partition("## Not offered")[2].partition("## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    said = {what: why.replace("`", "") for what, why in rows[1:]}
    assert said == {what: why.replace("`", "") for what, why in NOT_OFFERED.items()}
