"""The training loop: collect, label, update, check, log, checkpoint. It knows no task, policy family or algorithm."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from burnish.core.contracts import TrainablePolicy, VecEnv
from burnish.rl.checkpoint import last_checkpoint
from burnish.rl.log import RunLog
from burnish.rl.numbers import Parts, TrainNumbers, TrainResult
from burnish.rl.trainer import Trainer

__all__ = ["Parts", "TrainNumbers", "TrainResult", "train"]


def train(
    policy: TrainablePolicy,
    env: VecEnv,
    parts: Parts,
    numbers: TrainNumbers,
    *,
    run: Path,
    description: Mapping[str, Any],
    resume: bool = False,
    report: Callable[[Mapping[str, float]], None] | None = None,
) -> TrainResult:
    """Post-train a policy in place.

    A checkpoint is a boundary: episodes that run at it begin again from their Starts, in this run as in one resumed
    from it, so both go on bit for bit alike (on CPU, in one process). A run resumed where there is no checkpoint yet
    starts from the beginning.

    Args:
        policy: Pretrained; its state at the first call is the reference, kept under ``run/reference``.
        env: N environments.
        parts: Built sampler, labelers, objectives and controllers.
        numbers: Everything else.
        run: Run folder.
        description: JSON values for ``burnish.json`` of every checkpoint.
        resume: Go on from the newest checkpoint of ``run``.
        report: Receives the metrics of each iteration, for example from :func:`burnish.rl.log.progress`.

    Raises:
        ConfigError: If parts, policy and env do not fit, or ``run`` holds a run that is not resumed.
        CheckError: If a run-time check fails.
    """
    trainer = Trainer(policy, env, parts, numbers, run, description)
    trainer.open(resume)
    log = RunLog(run, after=trainer.iteration)
    reason = "all iterations are done"
    metrics: dict[str, float] = {}
    try:
        while trainer.iteration < numbers.iterations:
            metrics, stop = trainer.iterate()
            log.write(metrics)
            if report is not None:
                report(metrics)
            if stop or trainer.iteration % numbers.checkpoint_every == 0 or trainer.iteration == numbers.iterations:
                trainer.save()
            if stop:
                reason = stop
                break
    finally:
        log.close()
    checkpoint = last_checkpoint(run)
    assert checkpoint is not None
    return TrainResult(trainer.iteration, checkpoint, metrics, reason)
