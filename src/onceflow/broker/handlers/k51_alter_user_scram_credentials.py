"""AlterUserScramCredentials (51), v0: give users passwords and take them away (KIP-554).

- The password never comes here: the client salts and hashes it, and we keep only what checks it.
- Each user is judged alone; what is good is written in one step, and on disk before the answer. A user may be named
  once in a request (92).
- Who is logged in stays so: the connection was let in. With `connections.max.reauth.ms` it has to come again.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from onceflow.broker.access import check_cluster
from onceflow.broker.handlers import Context
from onceflow.broker.handlers.k50_describe_user_scram_credentials import MECHANISM_NUMBERS
from onceflow.broker.large_requests import Steps, in_steps
from onceflow.broker.node import Node
from onceflow.broker.users import ITERATIONS_MAX, ITERATIONS_MIN, NAME_MAX, Change, Credential, Users
from onceflow.errors import ErrorCode, ProtocolError, StorageError
from onceflow.wire.acls import Operation
from onceflow.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

MECHANISMS: Final = {number: name for name, number in MECHANISM_NUMBERS.items()}
SALT_MAX: Final = 1024

Outcome = Change | ProtocolError


def handle(node: Node, context: Context, request: AlterUserScramCredentialsRequest) -> Steps:
    outcomes: dict[str, Outcome] = {}
    try:
        check_cluster(node, context, Operation.ALTER)  # first: looking at what is asked takes time
        times = Counter(each.name for each in _asked(request))
        for asked in _asked(request):
            outcomes[asked.name] = _judge(node.users, asked, times[asked.name])
            yield 0
        changes = [each for each in outcomes.values() if isinstance(each, Change)]
        if changes:
            node.users.apply(changes)
    except StorageError as error:
        outcomes = dict.fromkeys(outcomes, ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
    except ProtocolError as error:
        outcomes = dict.fromkeys((each.name for each in _asked(request)), error)
    results = yield from in_steps(outcomes, lambda user: _result(user, outcomes[user]))
    return AlterUserScramCredentialsResponse(results=results)


def _asked(request: AlterUserScramCredentialsRequest) -> list[ScramCredentialDeletion | ScramCredentialUpsertion]:
    return [*request.deletions, *request.upsertions]


def _judge(users: Users, asked: ScramCredentialDeletion | ScramCredentialUpsertion, times: int) -> Outcome:
    try:
        mechanism = _checked(asked)
        if isinstance(asked, ScramCredentialDeletion):
            if mechanism not in users.credentials(asked.name):
                message = "Attempt to delete a user credential that does not exist"
                raise ProtocolError(ErrorCode.RESOURCE_NOT_FOUND, message)
            change = Change(user=asked.name, mechanism=mechanism)
        else:
            change = Change(user=asked.name, mechanism=mechanism, credential=_credential(mechanism, asked))
        if times > 1:
            message = "A user credential cannot be altered twice in the same request"
            raise ProtocolError(ErrorCode.DUPLICATE_RESOURCE, message)
        return change
    except ProtocolError as error:
        return error


def _checked(asked: ScramCredentialDeletion | ScramCredentialUpsertion) -> str:
    """The name of the mechanism."""
    if not asked.name:
        raise ProtocolError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len(asked.name) > NAME_MAX or "\0" in asked.name:
        raise ProtocolError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username is too long, or holds a NUL character")
    if asked.mechanism not in MECHANISMS:
        raise ProtocolError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return MECHANISMS[asked.mechanism]


def _credential(mechanism: str, asked: ScramCredentialUpsertion) -> Credential:
    if asked.iterations < ITERATIONS_MIN:
        raise ProtocolError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if asked.iterations > ITERATIONS_MAX:
        raise ProtocolError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not 0 < len(asked.salt) <= SALT_MAX or not 0 < len(asked.salted_password) <= SALT_MAX:
        raise ProtocolError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt or salted password is empty or too long")
    return Credential.of(mechanism, bytes(asked.salted_password), bytes(asked.salt), asked.iterations)


def _result(user: str, outcome: Outcome) -> AlterUserScramCredentialsResult:
    if isinstance(outcome, Change):
        return AlterUserScramCredentialsResult(user=user)
    return AlterUserScramCredentialsResult(user=user, error_code=outcome.code, error_message=outcome.message)
