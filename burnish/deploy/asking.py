"""When the policy is asked, what it is told, and what becomes of its answers."""

from typing import TYPE_CHECKING, Any

from burnish.core.contracts import InpaintingPolicy
from burnish.core.inpainting import Prefix
from burnish.core.spec import Observation
from burnish.deploy.chunking import ChunkScheduler
from burnish.deploy.inference import Inference, SimulatedInference, ThreadInference
from burnish.deploy.observations import ActingPolicy
from burnish.deploy.realtime import DelayEstimate, make_prefix
from burnish.deploy.robot import Clock
from burnish.deploy.ticklog import TickLog

if TYPE_CHECKING:
    from burnish.deploy.runtime import Config


class Asking:
    """Between the scheduler and the policy: at most one question at a time."""

    def __init__(
        self, policy: ActingPolicy, scheduler: ChunkScheduler, config: "Config", clock: Clock, control_dt: float
    ) -> None:
        """Prepare.

        Args:
            policy: Who is asked.
            scheduler: Who wants chunks.
            config: The runtime's.
            clock: The runtime's.
            control_dt: Seconds per tick.
        """
        self.inference_ms: list[float] = []
        """Computing time of each answer."""
        self.delays: list[int] = []
        """Index at which each answer took over."""
        self.in_painted = 0
        """Questions that came with a plan to go on from."""
        self._scheduler, self._config, self._clock, self._dt = scheduler, config, clock, control_dt
        self._inference = _make_inference(policy, config, clock)
        self._in_paints = (
            config.inpaint.use == "auto"
            and config.chunking.ensemble_decay is None  # averages agree already
            and isinstance(policy, InpaintingPolicy)
        )
        self._delay = DelayEstimate(config.inpaint)
        self._decisions = self._ticks = self._asked_tick = 0
        self._cold = self._asked_cold = True

    def step(self, observation: Observation, begin: float, row: dict[str, Any], log: TickLog | None) -> None:
        """Take what has arrived, and ask for a chunk if one is wanted: once per control tick.

        Args:
            observation: What the policy reads, N = 1.
            begin: When the tick began [s].
            row: What is logged of the tick.
            log: Where decisions go.

        Raises:
            Exception: Whatever the policy raised, and ProtocolError for an answer of another shape.
        """
        self._ticks += 1
        self._take(0.0, row, log)
        if self._scheduler.wants_chunk():
            self._ask(observation, row)
        if self._scheduler.has_action():
            self._take(0.0, row, log)
        else:
            self._take(begin + self._config.wait_share * self._dt - self._clock.now(), row, log)

    def discard(self) -> None:
        """Want what is being computed no more; what comes next is a cold start again."""
        self._inference.discard()
        self._cold = True

    def close(self) -> None:
        """Let go of the policy."""
        self._inference.close()

    def _ask(self, observation: Observation, row: dict[str, Any]) -> None:
        prefix = self._prefix()
        self._scheduler.ask()
        row["decision"] = self._decisions
        if prefix is not None:
            self.in_painted += 1
            row |= {"frozen_steps": prefix.frozen_steps, "prefix": prefix.action.tolist()}
        self._asked_tick, self._asked_cold, self._cold = self._ticks, self._cold, False
        self._inference.submit(self._decisions, observation, prefix)
        self._decisions += 1

    def _prefix(self) -> Prefix | None:
        """Return what the next chunk is to go on from; None for policies that cannot, and where nothing is planned."""
        if not self._in_paints or not self._delay.steps:
            return None
        return make_prefix(self._scheduler.planned(), self._delay.steps, self._config.inpaint)

    def _take(self, wait_s: float, row: dict[str, Any], log: TickLog | None) -> None:
        answer = self._inference.poll(wait_s)
        if answer is None:
            return
        frozen = answer.prefix.action[: answer.prefix.frozen_steps] if answer.prefix is not None else None
        delay = self._scheduler.arrive(answer.chunk, frozen)
        if not self._asked_cold:  # the first answer of all, or after a pause, tells nothing of those to come
            self._delay.add(self._ticks - self._asked_tick)
        self.delays.append(delay)
        self.inference_ms.append(answer.seconds * 1e3)
        row |= {"arrived": answer.number, "delay": delay, "infer_ms": answer.seconds * 1e3}
        if log is not None:
            log.decision(answer.number, answer.observation, answer.chunk)


def _make_inference(policy: ActingPolicy, config: "Config", clock: Clock) -> Inference:
    if not clock.simulated:
        return ThreadInference(policy, seed=config.seed, deterministic=config.deterministic)
    return SimulatedInference(
        policy,
        clock,
        seed=config.seed,
        deterministic=config.deterministic,
        latency_s=config.latency_s,
        jitter_s=config.latency_jitter_s,
    )
