"""Writes the table of alerts (`onceflow.monitor.rules_table`) to `monitoring/onceflow-alerts.yml`, and what each means
into the docs, between two comments.

`python tools/write_alert_rules.py` writes both; a test compares.
"""

from __future__ import annotations

import re
from pathlib import Path

from onceflow.monitor.rules_prometheus import documentation, rule_file

ROOT = Path(__file__).parents[1]
RULE_FILE = ROOT / "monitoring" / "onceflow-alerts.yml"
PAGES = [ROOT / "docs" / "monitoring.md", ROOT / "docs" / "parts" / "alerts.md"]
BEGIN, END = "<!-- written by tools/write_alert_rules.py -->\n", "<!-- end of what is written -->\n"


def rewritten(page: str) -> str:
    """The page with the rules as the table has them."""
    between = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    return between.sub(lambda _: f"{BEGIN}\n{documentation()}\n{END}", page)


if __name__ == "__main__":
    RULE_FILE.write_text(rule_file())
    for page in PAGES:
        if page.exists():
            page.write_text(rewritten(page.read_text()))
