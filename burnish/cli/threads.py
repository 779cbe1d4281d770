"""Thread defaults: one compute thread and passive waits, set before numpy or torch is imported.

Small networks lose up to ten times their speed to threads that spin at barriers while another process has the core;
environments run in parallel instead. ``BURNISH_THREADS`` asks for more, for large networks on idle cores.
"""

import os


def set_thread_defaults() -> None:
    """Set thread counts in the process environment where the user has not set them."""
    count = os.environ.get("BURNISH_THREADS", "1")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        os.environ.setdefault(name, count)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("LP_NUM_THREADS", "0")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
