"""Samplers decide what runs next."""
