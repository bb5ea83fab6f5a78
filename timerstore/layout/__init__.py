"""Bytes to records and back, and the names of files and folders. Opens nothing.

What C reads too has its numbers from `native.lib`; what only Python touches (names, handles, JSON)
lives here alone. Other rooms import from the modules: tree, record, handle, unique_key,
topics_json, timer_metrics_json.
"""
