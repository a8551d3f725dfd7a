"""A classic group in the hands of anybody: whatever members do in whatever order, some things always hold.

- No decision raises anything but a protocol outcome, and every move is in the table of states.
- A request is answered once, and nobody waits for ever: when all members have gone silent, the group is empty.
- Members of one generation share a protocol, and the leader is one of them.
- The group that a restart makes of the log is one that was there.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onceflow.errors import ErrorCode
from onceflow.group.classic import ClassicGroup
from tests.support.effort import examples
from tests.unit.group.classic_traces import SESSION_MS, Conversation

INSTANCES = (None, "x", "y")
PROTOCOLS = ("a", "b", "a b", "b a", "a b c")
FAILURES = (ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_COORDINATOR)
DAY_MS = 86_400_000

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["new", "old", "join", "join", "sync", "sync", "beat", "leave", "time", "disk", "disk"]),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    max_size=60,
)


class Crowd:
    """Does one step after the other, with the ids that it was given so far, right or outdated."""

    def __init__(self, max_size: int) -> None:
        self.talk = Conversation(max_size=max_size)
        self.sent: list[str] = []
        self.instance_of: dict[str, str | None] = {}

    def ticket(self, what: str) -> str:
        self.sent.append(f"{what} {len(self.sent)}")
        return self.sent[-1]

    def ids(self) -> list[str]:
        answers = [self.talk.answers[ticket] for ticket in self.sent if ticket in self.talk.answers]
        return [answer.member_id for answer in answers if getattr(answer, "member_id", "")]

    def do(self, what: str, one: int, other: int) -> None:
        known = self.ids()
        member = known[one % len(known)] if known else "nobody-0"
        instance = member.split("-")[0] if member.split("-")[0] in INSTANCES else None
        if what == "new":
            self.talk.join(self.ticket(what), instance=INSTANCES[one % 3], protocols=PROTOCOLS[other % 5])
        elif what == "old":
            self.talk.join(self.ticket(what), version=3, protocols=PROTOCOLS[other % 5])
        elif what == "join":
            self.talk.join(self.ticket(what), member, instance=instance, protocols=PROTOCOLS[other % 5])
        elif what == "sync":
            self.talk.sync(self.ticket(what), member, instance=instance)
        elif what == "beat":
            self.talk.heartbeat(member, instance=instance, generation=self.talk.group.generation - other % 2)
        elif what == "leave":
            self.talk.leave(member)
        elif what == "time":
            self.talk.advance((1 + one) * SESSION_MS // 4)
        else:
            self.talk.disk(FAILURES[one % 3])

    def check(self) -> None:
        group = self.talk.group
        ids = [member.id for member in group.members]
        assert len(ids) == len(set(ids))
        assert (group.leader in ids) if ids else (group.leader is None)
        assert (group.state_name == "Empty") <= (not ids)
        if group.state_name in ("Stable", "CompletingRebalance"):
            assert group.protocol in group.members.common_protocols()
            assert not any(member.is_joining for member in group.members) or group.state_name == "Stable"
        if self.talk.log:
            stored = self.talk.log[-1]
            back = ClassicGroup.of("g", stored, self.talk.limits, self.talk.now_ms)
            assert [member.id for member in back.members] == [member.member_id for member in stored.members]

    def everybody_falls_silent(self) -> None:
        self.talk.disk()
        for _ in range(8):
            self.talk.advance(DAY_MS)
            self.talk.disk()


@given(STEPS, st.sampled_from([1, 2, 100]))
@examples(50, soak=15_000)
def test_whatever_members_do(steps: list[Step], max_size: int) -> None:
    crowd = Crowd(max_size)
    for step in steps:
        crowd.do(*step)
        crowd.check()
    crowd.everybody_falls_silent()
    assert set(crowd.talk.answers) == set(crowd.sent)
    assert (crowd.talk.state, len(crowd.talk.group.members)) == ("Empty", 0)
    assert crowd.talk.group.next_deadline_ms() is None
