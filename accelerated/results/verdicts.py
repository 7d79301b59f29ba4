"""The verdicts of the court on laws (`court.py` writes them), as sentences."""

import csv
from pathlib import Path

from .blocks import percent

VERDICTS = Path(__file__).with_name("court.csv")


def verdict_line(law: str, coefficients: str) -> str | None:
    """Return a sentence on a law, from the verdicts on released tables; None if the court has not judged it."""
    with open(VERDICTS, newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if (row["law"], row["coefficients"]) == (law, coefficients):
                how = "its printed coefficients" if coefficients != "fitted" else "fits to other tables"
                ignored = f" (it ignores {', '.join(row['ignored'])})" * bool(row["ignored"])
                median, worst = (percent(float(row[name]), ".1f") for name in ("median_miss", "worst_miss"))
                return (
                    f"on {row['tables']} released tables that it has not seen, {law} by {how}{ignored} misses {median} "
                    f"of the loss (median; at most {worst}) and fails on {percent(float(row['fails']), '.0f')} of them "
                    "(routelaws court)"
                )
    return None
