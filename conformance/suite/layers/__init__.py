"""Experts and dispatch, and the losses that balance experts."""
