"""Merging fragments: two of one preview become one that says what it stands for. Pure."""

import msgspec

from runlane_contracts.previews import Coalesced, Preview


def sources(preview: Preview) -> int:
    """How many fragments, as they were first published, are in this one."""
    return preview.coalesced.source_count if preview.coalesced is not None else 1


def merged(earlier: Preview, later: Preview) -> Preview | None:
    """One fragment that stands for both, or None where they must stay apart."""
    if later.fate is not None or earlier.fate is not None or earlier.operation != later.operation:
        return None
    if (
        earlier.subject != later.subject
        or earlier.encoding != later.encoding
        or earlier.lease_epoch != later.lease_epoch
    ):
        return None
    if later.first_seq != earlier.preview_seq + 1:
        return None  # a fragment is missing in between; the receiver must see that
    coalesced = Coalesced(
        first_seq=earlier.first_seq, last_seq=later.preview_seq, source_count=sources(earlier) + sources(later),
        truncated=any(one.coalesced is not None and one.coalesced.truncated for one in (earlier, later)),
    )  # fmt: skip
    if later.operation == "latest_value":
        return msgspec.structs.replace(later, coalesced=coalesced)
    if later.operation == "append" and isinstance(earlier.data, str) and isinstance(later.data, str):
        if earlier.encoding == "base64" and _ends_inside(earlier.data):
            return None
        return msgspec.structs.replace(
            later, data=earlier.data + later.data, offset=earlier.offset, base_revision=earlier.base_revision,
            coalesced=coalesced,
        )  # fmt: skip
    return None


def _ends_inside(data: str) -> bool:
    """Whether a base64 text cannot be continued by another one: it is padded, or cut within a group."""
    return len(data) % 4 != 0 or data.endswith("=")
