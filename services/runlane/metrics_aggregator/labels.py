"""Labels from what users name, bounded: the first ones keep their names, the others share one."""

from msgspec import Struct

from runlane_contracts.telemetry import OVERFLOW

MOST_CHARACTERS = 64


class Limits(Struct, frozen=True, kw_only=True):
    """How many labels of each kind there may be."""

    tenants: int = 100
    agents: int = 200
    agents_per_tenant: int = 20
    tools: int = 100
    pools: int = 50


class Labels:
    """Which names have a label of their own. A name that has one keeps it, over restarts too (`taken`)."""

    def __init__(self, limits: Limits, taken: dict[str, list[str]] | None = None) -> None:
        self._limits = limits
        self._taken = {scope: dict.fromkeys(names) for scope, names in (taken or {}).items()}

    @property
    def taken(self) -> dict[str, list[str]]:
        """All of them, by scope."""
        return {scope: list(names) for scope, names in self._taken.items()}

    def tenant(self, tenant_id: str) -> str:
        return self._bounded("tenant", tenant_id, self._limits.tenants)

    def agent(self, tenant_id: str, agent: str) -> tuple[str, str]:
        """The labels of a tenant and of an agent of it. One tenant cannot use up the labels of the others."""
        tenant = self.tenant(tenant_id)
        if tenant == OVERFLOW:
            return OVERFLOW, OVERFLOW
        scope, name = f"agent {tenant}", shown(agent)
        if name in self._taken.get(scope, {}):
            return tenant, name
        if sum(len(names) for key, names in self._taken.items() if key.startswith("agent ")) >= self._limits.agents:
            return tenant, OVERFLOW
        return tenant, self._bounded(scope, agent, self._limits.agents_per_tenant)

    def tool(self, name: str) -> str:
        return self._bounded("tool", name, self._limits.tools)

    def pool(self, name: str) -> str:
        return self._bounded("pool", name, self._limits.pools)

    def _bounded(self, scope: str, text: str, most: int) -> str:
        names, name = self._taken.setdefault(scope, {}), shown(text)
        if name in names:
            return name
        if len(names) >= most:
            return OVERFLOW
        names[name] = None
        return name


def shown(text: str) -> str:
    """A name as a label: short, one line; never the one that stands for all others."""
    short = "".join(letter if letter.isprintable() else "?" for letter in text[:MOST_CHARACTERS]) or "_unnamed"
    return f"{short}?" if short == OVERFLOW else short
