"""Industrial contact tasks in MuJoCo: a stiff position-controlled tool with a wrist force-torque sensor."""
