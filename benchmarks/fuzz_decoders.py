"""Send hostile messages to every decoder that faces a network: ``python benchmarks/fuzz_decoders.py [--messages N]``.

hypothesis makes them from valid messages, from grammar and from noise (``tests/unit/deploy/fuzzing.py``). The command
ends with status 1, and prints the smallest message, when a decoder does anything but return or refuse.
"""

import argparse
import logging
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as use_seed
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.unit.deploy.fuzzing import TARGETS, survives


def fuzz(
    decode: Callable[[bytes], Any], messages: st.SearchStrategy[list[bytes]], examples: int, seed: int
) -> tuple[int, int]:
    """Return (messages sent, messages accepted)."""
    sent = accepted = 0

    @use_seed(seed)
    @given(messages)
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def check(drawn: list[bytes]) -> None:
        nonlocal sent, accepted
        for message in drawn:
            sent += 1
            accepted += survives(decode, message)

    check()
    return sent, accepted


def main() -> int:
    """Fuzz all decoders in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000, help="at least how many in all")
    parser.add_argument("--round", type=int, default=200, help="examples per seed, of up to 18 messages each")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)  # every refusal is a line in a server's log
    share = -(-chosen.messages // len(TARGETS))
    total = 0
    for name, (decode, messages) in TARGETS.items():
        begin, sent, accepted, seed = time.monotonic(), 0, 0, chosen.seed
        while sent < share:
            more, taken = fuzz(decode, messages, chosen.round, seed)
            sent, accepted, seed = sent + more, accepted + taken, seed + 1
        total += sent
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{name}: {sent} messages, {accepted} accepted, {sent - accepted} refused, "
            f"{time.monotonic() - begin:.0f} s, largest memory so far {memory:.0f} MB",
            flush=True,
        )
    print(f"{total} messages, no decoder did anything but return or refuse")
    return 0


if __name__ == "__main__":
    sys.exit(main())
