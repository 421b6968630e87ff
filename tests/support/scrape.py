"""`/metrics` as a scraper reads it."""

import re

import httpx

_SAMPLE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


class Scrape:
    """One scrape: `value(name, **labels)` of a sample, `names` of all metrics."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples: list[tuple[str, dict[str, str], float]] = []
        for line in text.splitlines():
            if line and not line.startswith("#"):
                found = _SAMPLE.fullmatch(line)
                assert found, line
                self.samples.append((found[1], dict(_LABEL.findall(found[2] or "")), float(found[3])))

    @property
    def names(self) -> set[str]:
        return {re.sub(r"_(bucket|sum|count)$", "", name) for name, _, _ in self.samples}

    def values(self, metric: str, **labels: str) -> list[float]:
        return [value for name, found, value in self.samples if name == metric and labels.items() <= found.items()]

    def value(self, metric: str, **labels: str) -> float | None:
        """The sum over what has these labels; None if nothing has."""
        found = self.values(metric, **labels)
        return sum(found) if found else None


async def scrape(url: str) -> Scrape:
    async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
        try:
            return Scrape((await http.get(f"{url}/metrics")).text)
        except httpx.TransportError:
            return Scrape("")
