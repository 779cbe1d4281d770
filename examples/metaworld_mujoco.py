"""Register Meta-World's environments so that they also run with MuJoCo versions newer than Meta-World 3.0 knows.

Meta-World 3.0 writes 11 numbers into each weld constraint of its arm. MuJoCo holds 12 since it gave welds one more, so
building any environment fails. Importing this module registers the environments as ``import metaworld`` does, and
writes the 11 numbers only. Nothing else of Meta-World is changed. With this folder on ``PYTHONPATH``::

    Config(env_id="metaworld_mujoco:Meta-World/MT1", kwargs=(("env_name", "peg-insert-side-v3"), ("seed", 0)),
           max_episode_steps=500)
"""

import metaworld  # noqa: F401  (registers the ids)
import mujoco
from metaworld.sawyer_xyz_env import SawyerMocapBase

WELD = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 5.0)
"""Anchor [m], relative position [m], relative quaternion wxyz, torque scale; Meta-World's own numbers."""


def reset_mocap_welds(self: SawyerMocapBase) -> None:
    """Set the welds between the mocap body and the hand."""
    model = self.model
    if model.nmocap > 0:
        for i in range(model.neq):
            if model.eq_type[i] == mujoco.mjtEq.mjEQ_WELD:
                model.eq_data[i, : len(WELD)] = WELD


SawyerMocapBase.reset_mocap_welds = reset_mocap_welds
