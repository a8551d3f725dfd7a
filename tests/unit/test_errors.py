"""Errors: Kafka's codes as they stand on the wire, and one tree for everything that is raised on purpose."""

from __future__ import annotations

import re

import kio.schema.errors
import pytest

from onceflow import errors
from onceflow.errors import ErrorCode, OnceflowError, ProtocolError


def test_codes_have_no_gap() -> None:
    assert sorted(ErrorCode) == list(range(-1, max(ErrorCode) + 1))


def test_names_codes_and_what_may_be_tried_again_are_those_of_kafka() -> None:
    """kio's come from Apache Kafka's own source; ours may be a few versions ahead."""
    theirs = {int(code): (code.name.upper(), code.retriable) for code in kio.schema.errors.ErrorCode}
    ours = {int(code): (code.name, code.retriable) for code in ErrorCode}
    assert len(theirs) > 120
    assert {code: ours.get(code) for code in theirs} == theirs


@pytest.mark.parametrize(
    ("code", "retriable"),
    [
        (ErrorCode.NONE, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, False),
        (ErrorCode.CORRUPT_MESSAGE, True),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ErrorCode.REQUEST_TIMED_OUT, True),
        (ErrorCode.MESSAGE_TOO_LARGE, False),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, False),
        (ErrorCode.INVALID_PRODUCER_EPOCH, False),
        (ErrorCode.CONCURRENT_TRANSACTIONS, True),
        (ErrorCode.KAFKA_STORAGE_ERROR, True),
        (ErrorCode.PRODUCER_FENCED, False),
        (ErrorCode.UNKNOWN_TOPIC_ID, True),
    ],
)
def test_whether_a_client_may_simply_try_again(code: ErrorCode, retriable: bool) -> None:
    assert code.retriable is retriable


def test_a_code_is_a_number_on_the_wire() -> None:
    assert ErrorCode.INVALID_RECORD == 87
    assert ErrorCode(87) is ErrorCode.INVALID_RECORD
    with pytest.raises(ValueError, match="9999"):
        ErrorCode(9999)


def test_a_protocol_error_carries_its_code_and_a_sentence() -> None:
    error = ProtocolError(ErrorCode.INVALID_RECORD, "A sentence.")
    assert (error.code, error.message, str(error)) == (ErrorCode.INVALID_RECORD, "A sentence.", "A sentence.")
    bare = ProtocolError(ErrorCode.INVALID_RECORD)
    assert (bare.message, str(bare)) == (None, "INVALID_RECORD")


def test_everything_raised_on_purpose_is_in_one_tree_and_the_docstring_draws_it() -> None:
    assert errors.__doc__ is not None
    for name in errors.__all__:
        error = getattr(errors, name)
        if issubclass(error, Exception):
            assert issubclass(error, OnceflowError)
            assert re.search(rf"\b{name}\b", errors.__doc__), f"{name} is not in the picture"


def test_a_message_that_quotes_too_much_keeps_its_beginning_and_its_end() -> None:
    error = ProtocolError(ErrorCode.INVALID_CONFIG, "What " + "x" * 100_000 + " is no number.")
    assert error.message is not None
    assert len(error.message) < 3_000  # a string of the older versions has 32,767 bytes at most
    assert error.message.startswith("What xxx")
    assert error.message.endswith("xxx is no number.")
    assert str(error) == error.message
