"""Runs a policy that Stepgraph exported (`host export`), in PyTorch."""

from .policy import Outlook, Policy

__all__ = ["Outlook", "Policy"]
