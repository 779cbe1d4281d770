"""Connections to outside simulators; no reward and no task is known here."""
