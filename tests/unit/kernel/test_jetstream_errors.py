"""What an error of the server means to a caller."""

import nats.errors
import pytest

from runlane.kernel.connection import as_kernel_error
from runlane.kernel.errors import AheadOfStream, Conflict, Gap, Overloaded, Permanent, Retryable, StreamReplaced
from runlane.kernel.jetstream import ApiError, ServerError, error_in, meaning


@pytest.mark.parametrize(
    ("code", "err_code", "text", "kind"),
    [
        (400, 10071, "wrong last sequence: 12", Conflict),
        (400, 10164, "last sequence by subject mismatch", Conflict),
        (503, 10077, "maximum bytes exceeded", Overloaded),
        (503, 10077, "maximum messages exceeded", Overloaded),
        (500, 10023, "insufficient resources", Overloaded),
        (500, 10047, "insufficient storage resources available", Overloaded),
        (503, 10008, "JetStream system temporarily unavailable", Retryable),
        (500, 10999, "something inside", Retryable),
        (429, 10167, "too many requests", Overloaded),
        (400, 10054, "message size exceeds maximum allowed", ApiError),
        (404, 10059, "stream not found", ApiError),
    ],
)
def test_each_error_says_what_to_do(code: int, err_code: int, text: str, kind: type[Exception]) -> None:
    assert type(meaning(ServerError(code, err_code, text), "publish")) is kind


def test_a_conflict_tells_where_the_stream_is_if_the_server_did() -> None:
    told = meaning(ServerError(400, 10071, "wrong last sequence: 12"), "publish")
    silent = meaning(ServerError(400, 10164, "last sequence by subject mismatch"), "publish")
    assert isinstance(told, Conflict)
    assert isinstance(silent, Conflict)
    assert (told.current_seq, silent.current_seq) == (12, None)


def test_an_answer_without_an_error_has_none_and_one_that_is_garbled_is_an_error() -> None:
    assert error_in(b'{"stream":"S","seq":1}') is None
    assert error_in(b'{"error":{"code":400,"err_code":10071,"description":"x"}}') == ServerError(400, 10071, "x")
    garbled = error_in(b'{"error" oops')
    assert garbled is not None
    assert isinstance(meaning(garbled, "x"), Retryable)


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (nats.errors.MaxPayloadError(), Permanent),
        (nats.errors.BadSubjectError(), Permanent),
        (nats.errors.NoRespondersError(), Retryable),
        (nats.errors.TimeoutError(), Retryable),
        (nats.errors.ConnectionClosedError(), Retryable),
        (nats.errors.OutboundBufferLimitError(), Retryable),
    ],
)
def test_the_clients_errors_become_ours(exc: Exception, kind: type[Exception]) -> None:
    assert type(as_kernel_error(exc, "x")) is kind


def test_what_can_be_handled_together_is_one_family() -> None:
    assert issubclass(Overloaded, Retryable)
    assert issubclass(AheadOfStream, Retryable)
    assert issubclass(StreamReplaced, Permanent)
    assert issubclass(Gap, Permanent)
