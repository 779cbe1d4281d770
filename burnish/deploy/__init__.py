"""What runs beside the robot: policy server, client, fixed-rate runtime, chunk scheduling and safety; no torch."""
