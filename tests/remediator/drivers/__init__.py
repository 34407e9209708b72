"""Drivers on real parts, and the contract that all of them keep."""
