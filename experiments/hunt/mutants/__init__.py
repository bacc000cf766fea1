"""Mutants: guards of the protocol that can be switched off one at a time, and the hunt that must notice each."""
