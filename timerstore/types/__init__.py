"""The values that callers pass and receive. Users import them from `timerstore`.

clock       the time of a store, and subscriptions to its jumps
config      the settings of a store
messages    a message, batches of messages, and the result of a pull
receipts    the results of puts
reports     the results of calls that inspect, report or cancel

They open no file and import nothing of the engine.
"""
