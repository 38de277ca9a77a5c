"""Faults to be put into real runs, one at a time, to see whether the audit finds them.

Each is a part of a run that works, wrapped so that it does one thing wrong. Nothing outside this folder knows of them.
"""
