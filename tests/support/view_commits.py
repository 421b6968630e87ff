"""Writing the view directly, as the redaction filter would, so that only the gateway is tested or measured."""

from collections.abc import Sequence

from runlane_contracts.codec import encode
from runlane_contracts.envelope import Commit, Fact
from runlane_contracts.headers import FIRST_SEQUENCE, LAST_SEQUENCE, LOG_POSITION
from support.edge_process import EdgeProcess


async def put(edge: EdgeProcess, facts: Sequence[Fact]) -> None:
    """One message of the view."""
    first, last = facts[0], facts[-1]
    commit = Commit(
        commit_id=f"c{first.sequence}", tenant_id=first.tenant_id, run_id=first.run_id,
        first_sequence=first.sequence, facts=tuple(facts),
    )  # fmt: skip
    await edge.filter.request(
        edge.layout.subjects.view(first.tenant_id, first.run_id), encode(commit),
        headers={FIRST_SEQUENCE: str(first.sequence), LAST_SEQUENCE: str(last.sequence), LOG_POSITION: "e:1"},
    )  # fmt: skip
