"""How a car moves: a kinematic bicycle about the rear axle with first-order actuators, as pure functions of arrays.

State: x, y [m] of the rear-axle centre on the ground, yaw [rad], speed [m/s], front-wheel angle [rad], acceleration
[m/s^2]. With wheelbase L, time constants tau, and commands delta_c and a_c (limited first)::

    x' = v cos(yaw)   y' = v sin(yaw)   yaw' = v tan(delta) / L   v' = a
    delta' = (delta_c - delta) / tau_delta                        a' = (a_c - a) / tau_a

Wheelbase, lags and limits are those of AlpaSim's controller. Below 5 m/s AlpaSim's own plant is this model with
small angles; above it adds tyre slip, which this one leaves out.
"""

from dataclasses import dataclass

import numpy as np

from burnish.core.errors import ConfigError
from burnish.core.spec import Array

REAR_OVERHANG_SHARE = 1.3 / 5.393
"""Rear axle to rear bumper over length; AlpaSim's ego is 5.393 m long and its rig origin 1.3 m before the bumper."""


@dataclass(frozen=True)
class Vehicle:
    """Numbers of the model; all cars of a simulation share them."""

    wheelbase: float = 2.85
    """Front axle to rear axle [m]."""
    steering_lag: float = 0.1
    """Time constant of the front-wheel angle [s]."""
    acceleration_lag: float = 0.1
    """Time constant of the acceleration [s]."""
    max_steering: float = float(np.pi / 4)
    """Largest front-wheel angle, either way [rad]."""
    min_acceleration: float = -8.0
    """Hardest braking [m/s^2]."""
    max_acceleration: float = 6.0
    """Hardest acceleration [m/s^2]."""
    max_speed: float = 35.0
    """Fastest that a car drives [m/s]; it never drives backwards."""
    substeps: int = 4
    """Integration steps in 0.1 s, second-order Runge-Kutta."""

    def __post_init__(self) -> None:
        """Refuse what divides by zero or has no range."""
        positive = ("wheelbase", "steering_lag", "acceleration_lag", "max_steering", "max_acceleration", "max_speed")
        for name in positive:
            if getattr(self, name) <= 0.0:
                raise ConfigError(f"Vehicle.{name} must be positive, found {getattr(self, name)}.")
        if self.min_acceleration >= 0.0 or not 1 <= self.substeps <= 100:
            raise ConfigError(
                "Vehicle needs min_acceleration < 0 and 1 to 100 substeps, found "
                f"{self.min_acceleration} and {self.substeps}."
            )

    def constants(self) -> Array:
        """(8,) the fields in order, as kernels take them."""
        return np.array(
            [
                self.wheelbase,
                self.steering_lag,
                self.acceleration_lag,
                self.max_steering,
                self.min_acceleration,
                self.max_acceleration,
                self.max_speed,
                self.substeps,
            ]
        )


def rig_to_center(length: Array) -> Array:
    """Return how far the centre of a box lies before its rear axle (...) [m], for boxes of a length (...) [m]."""
    return (0.5 - REAR_OVERHANG_SHARE) * length


def limited(command: Array, vehicle: Vehicle) -> Array:
    """Return commands (..., 2) of front-wheel angle [rad] and acceleration [m/s^2] within the limits."""
    low = (-vehicle.max_steering, vehicle.min_acceleration)
    high = (vehicle.max_steering, vehicle.max_acceleration)
    return np.clip(command, low, high)


def derivative(state: Array, command: Array, vehicle: Vehicle) -> Array:
    """Return the time derivative (..., 6) of states (..., 6) under limited commands (..., 2)."""
    _, _, yaw, speed, angle, acceleration = np.moveaxis(state, -1, 0)
    return np.stack(
        (
            speed * np.cos(yaw),
            speed * np.sin(yaw),
            speed * np.tan(angle) / vehicle.wheelbase,
            acceleration,
            (command[..., 0] - angle) / vehicle.steering_lag,
            (command[..., 1] - acceleration) / vehicle.acceleration_lag,
        ),
        -1,
    )


def advance(state: Array, command: Array, vehicle: Vehicle, dt: float) -> Array:
    """Return states (..., 6) after ``dt`` [s] of constant commands (..., 2), midpoint rule, speed kept in its range."""
    command = limited(command, vehicle)
    step = dt / vehicle.substeps
    for _ in range(vehicle.substeps):
        middle = state + 0.5 * step * derivative(state, command, vehicle)
        middle[..., 3] = np.clip(middle[..., 3], 0.0, vehicle.max_speed)
        state = state + step * derivative(middle, command, vehicle)
        state[..., 3] = np.clip(state[..., 3], 0.0, vehicle.max_speed)
    return state


def steady_steering(speed: Array, yaw_rate: Array, vehicle: Vehicle) -> Array:
    """Return the front-wheel angle (...) [rad] that turns at a yaw rate (...) [rad/s]; 0 below 0.25 m/s, as AlpaSim."""
    moving = speed > 0.25
    angle = np.arctan(vehicle.wheelbase * yaw_rate / np.where(moving, speed, 1.0))
    return np.where(moving, np.clip(angle, -vehicle.max_steering, vehicle.max_steering), 0.0)
