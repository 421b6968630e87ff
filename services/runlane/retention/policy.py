"""How long a finished run stays in the log: its class, and the class's age. Pure.

The class a run asked for (`limits.retention`) counts if there is one of that name, else its tenant's, else `default`.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta

from msgspec import Struct

DEFAULT_CLASS = "default"
NEVER = "never"
_UNITS = {"": "seconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(r"([0-9]{1,9})([smhdw]?)")
_NAME = re.compile(r"[a-z0-9-]{1,32}")


class Kept(Struct, frozen=True):
    """The class a run falls in, and its age. None: it stays for ever."""

    name: str
    age: timedelta | None

    @property
    def text(self) -> str:
        """What `log.compacted` states as its policy."""
        return f"{self.name}={NEVER if self.age is None else f'{self.age.total_seconds():.0f}s'}"


class Policy(Struct, frozen=True, kw_only=True):
    """All classes, and which tenant falls in which."""

    ages: Mapping[str, timedelta | None]
    tenants: Mapping[str, str] = {}

    def of(self, tenant_id: str, asked: str | None) -> Kept:
        """The class of a run."""
        for name in (asked, self.tenants.get(tenant_id), DEFAULT_CLASS):
            if name is not None and name in self.ages:
                return Kept(name, self.ages[name])
        return Kept(DEFAULT_CLASS, None)

    @property
    def least(self) -> timedelta | None:
        """The shortest age of all; None: nothing is ever archived."""
        return min((age for age in self.ages.values() if age is not None), default=None)

    def overridden(self, age: timedelta) -> "Policy":
        """The same with one age for every class that has one: what is kept for ever stays."""
        return Policy(
            ages={name: None if was is None else age for name, was in self.ages.items()}, tenants=self.tenants
        )


def policy_of(classes: str, tenants: str) -> Policy:
    """Of ``default=30d,short=1d,legal=never`` and ``acme=legal,other=short``.

    Raises:
        ValueError: not of that form, or a tenant of a class that there is not.
    """
    ages = {name: None if text == NEVER else age_of(text) for name, text in _pairs(classes)}
    by_tenant = dict(_pairs(tenants))
    unknown = sorted({name for name in by_tenant.values() if name not in ages})
    if unknown:
        raise ValueError(f"no retention class {unknown[0]!r}")
    return Policy(ages=ages, tenants=by_tenant)


def age_of(text: str) -> timedelta:
    """A span of time: ``90``, ``90s``, ``15m``, ``12h``, ``30d``, ``4w``.

    Raises:
        ValueError: none.
    """
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no age: a number and s, m, h, d or w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _pairs(text: str) -> Iterable[tuple[str, str]]:
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not equals or not _NAME.fullmatch(name) or not value:
            raise ValueError(f"{entry!r} is not name=value")
        yield name, value
