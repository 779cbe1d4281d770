"""A policy in the shadow of another: one drives, the other is only asked, and what they would do is compared.

The candidate is asked in a thread of its own, with what the driver saw, so that it cannot slow the robot down; while it
is busy, further questions are left out and counted.
"""

import json
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from burnish.core.errors import SpecError
from burnish.core.seeding import stream
from burnish.core.spec import TASK_KEY, Array, Observation
from burnish.core.step import ActionSample
from burnish.deploy.observations import ActingPolicy


@dataclass(frozen=True)
class ShadowReport:
    """How the candidate's answers differ from the driver's."""

    compared: int
    """Answers that were compared."""
    left_out: int
    """Questions that the candidate was too slow for."""
    mean_difference: Array
    """(A,) float64, mean absolute difference of each action entry, in its unit."""
    max_difference: Array
    """(A,) float64, largest one."""
    names: tuple[str, ...]
    """Names of the entries."""
    failed: str = ""
    """Why the candidate stopped answering; "" if it did not."""

    def text(self) -> str:
        """Return a few lines for a terminal."""
        lines = [
            f"shadow      {self.compared} answers compared, {self.left_out} left out because the candidate was busy"
        ]
        if self.compared:
            lines.extend(
                f"  {name:<28}mean difference {mean:.4g}, largest {worst:.4g}"
                for name, mean, worst in zip(self.names, self.mean_difference, self.max_difference, strict=True)
            )
        if self.failed:
            lines.append(f"  the candidate failed: {self.failed}")
        return "\n".join(lines)


class ShadowPolicy:
    """Answers as the driver does."""

    def __init__(self, driver: ActingPolicy, candidate: ActingPolicy, *, path: Path | None = None) -> None:
        """Pair two policies.

        Args:
            driver: Whose answers are executed.
            candidate: Who is only asked.
            path: JSONL file for one line per comparison.

        Raises:
            SpecError: If they act differently, or read the same key differently.
        """
        both = dict(driver.spec.observation)
        for key, item in candidate.spec.observation.items():
            problem = both.setdefault(key, item).mismatch(item)
            if problem:
                raise SpecError(
                    f"Driver '{driver.spec.id}' and candidate '{candidate.spec.id}' read '{key}': {problem}."
                )
        problem = driver.spec.action.mismatch(candidate.spec.action)
        if problem:
            raise SpecError(f"Driver '{driver.spec.id}' and candidate '{candidate.spec.id}' act otherwise: {problem}.")
        self.spec = replace(driver.spec, observation=both)
        self._driver, self._candidate = driver, candidate
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="shadow")
        self._pending: Future[None] | None = None
        self._lock = threading.Lock()
        self._difference: list[Array] = []
        self._left_out = 0
        self._failed = ""
        self._asked = 0
        self._path = path

    def act(
        self, observation: Observation, *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        """Return the driver's chunks, and ask the candidate if it has time."""
        sample = self._driver.act(_of(self._driver, observation), generator=generator, deterministic=deterministic)
        self._asked += 1
        if self._failed:
            return sample
        if self._pending is not None and not self._pending.done():
            self._left_out += 1
            return sample
        seen = {key: np.array(item) if isinstance(item, np.ndarray) else item for key, item in observation.items()}
        chunk = np.array(sample.action_chunk, float)
        self._pending = self._executor.submit(self._compare, self._asked - 1, seen, chunk, deterministic)
        return sample

    def report(self) -> ShadowReport:
        """Return the comparison up to now, after the candidate has finished its answer."""
        self._executor.shutdown()
        with self._lock:
            width = self.spec.action.shape[0]
            rows = np.stack(self._difference) if self._difference else np.zeros((0, width))
        return ShadowReport(
            compared=len(rows),
            left_out=self._left_out,
            mean_difference=rows.mean(0) if len(rows) else np.zeros(width),
            max_difference=rows.max(0) if len(rows) else np.zeros(width),
            names=self.spec.action.names or tuple(f"action[{n}]" for n in range(width)),
            failed=self._failed,
        )

    def _compare(self, number: int, observation: Observation, chunk: Array, deterministic: bool) -> None:
        try:
            sample = self._candidate.act(
                _of(self._candidate, observation), generator=stream(0, "shadow", number), deterministic=deterministic
            )
            answer = np.asarray(sample.action_chunk, float)
            steps = min(answer.shape[1], chunk.shape[1])
            difference = np.abs(answer[:, :steps] - chunk[:, :steps]).mean((0, 1))
        except Exception as error:  # a candidate that fails must not reach the robot
            self._failed = f"{type(error).__name__}: {error}"
            return
        with self._lock:
            self._difference.append(difference)
        if self._path is not None:
            line = {"question": number, "difference": difference.tolist(), "candidate": answer[0, 0].tolist()}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _of(policy: ActingPolicy, observation: Observation) -> Observation:
    return {key: observation[key] for key in (*policy.spec.observation, TASK_KEY) if key in observation}
