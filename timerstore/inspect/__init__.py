"""Inspect: looks at a store and says what is not as it should be; changes nothing.

check.py       every invariant of a store, as a Report

Holds:    a Report without problems means that every message has its unit, and every waiting timer
          its place.
"""
