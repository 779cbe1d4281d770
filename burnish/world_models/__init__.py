"""Learned dynamics behind the environments that imagine: observe, imagine, decode."""
