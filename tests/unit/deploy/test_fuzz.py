import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from burnish.core.errors import ProtocolError
from tests.unit.deploy.fuzzing import MSGPACK, PICKLES, PROTOBUF, TARGETS, edit, survives

EXAMPLES = 40
"""Per decoder, of up to eighteen messages each; ``benchmarks/fuzz_decoders.py`` sends as many as one likes."""


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_messages_are_refused_and_nothing_else_happens(name: str) -> None:
    decode, messages = TARGETS[name]

    @given(messages)
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def check(drawn: list[bytes]) -> None:
        for message in drawn:
            survives(decode, message)

    check()


@pytest.mark.parametrize("name", ["openpi", "pickle", "lerobot", "gr00t"])
def test_what_is_fuzzed_begins_with_messages_that_are_accepted(name: str) -> None:
    corpus = {"openpi": MSGPACK, "gr00t": MSGPACK, "pickle": PICKLES, "lerobot": PROTOBUF}[name]
    assert any(survives(TARGETS[name][0], message) for message in corpus)


def test_a_decoder_that_breaks_is_found() -> None:
    def broken(message: bytes) -> None:
        if message.startswith(b"\x83"):
            raise KeyError("a bug")
        raise ProtocolError("refused")

    def breaks(messages: list[bytes]) -> bool:
        try:
            for message in messages:
                survives(broken, message)
        except KeyError:
            return True
        return False

    assert breaks(find(TARGETS["openpi"][1], breaks))


@given(st.binary(min_size=1, max_size=20))
@settings(max_examples=20, deadline=None)
def test_edits(message: bytes) -> None:
    assert edit(message, [("cut", 0.0, b"x")]) == b""
    assert edit(message, [("insert", 1.0, b"x")]) == message + b"x"
    assert edit(message, [("overwrite", 0.0, b"x")]) == b"x" + message[1:]
    assert edit(message, [("delete", 0.0, b"x")]) == message[1:]
