"""Faults that are really made: a real remediator process, real commands, a real journal, SIGKILL that really comes.

docs/faults.md says of each what was done and what happened; `test_table.py` holds that page and these tests together.
"""
