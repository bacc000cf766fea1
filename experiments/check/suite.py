"""stub"""
from __future__ import annotations


class InvariantSuite:
    def __init__(self, cluster):
        self.violations = []

    def before_crash(self, node, loss):
        pass
