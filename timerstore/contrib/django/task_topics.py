"""The topics and the group of a backend, and the levels of its priorities.

    django|default|emails     the tasks of the queue "emails" of the backend "default"
    django|default            the results of that backend, with their ids as keys
    django-default            the group of its workers

Any character of a name that a topic cannot have is escaped as in a URL, so no two names collide.
"""

from urllib.parse import quote, unquote

_TOPIC_CHARACTERS_MAX = 127

_LEVELS = 10
_LOWEST, _HIGHEST = -100, 100  # priorities of Django


def task_topic(alias: str, queue: str) -> str:
    """Return the topic of a queue."""
    return f"{results_topic(alias)}|{_escaped(queue)}"


def results_topic(alias: str) -> str:
    """Return the topic of a backend's results."""
    return f"django|{_escaped(alias)}"


def group_of(alias: str) -> str:
    """Return the group of a backend's workers."""
    return f"django-{_escaped(alias)}"


def lease_topic(alias: str, topic: str) -> str:
    """Return the topic of leases and retries of a queue's topic."""
    return f"%RETRY%{group_of(alias)}|{topic}"


def excess_of(alias: str, queue: str) -> int:
    """Return by how many characters the name of a queue is too long, or 0."""
    return max(0, len(lease_topic(alias, task_topic(alias, queue))) - _TOPIC_CHARACTERS_MAX)


def queue_of(topic: str) -> str:
    """Return the queue of a topic that `task_topic` or `lease_topic` returned."""
    return unquote(topic.rpartition("|")[2])


def level_of(priority: int) -> int:
    """Return the level, 0 to 9, of a priority from -100 to 100; 0 is the highest of level 4."""
    return (priority - _LOWEST) * _LEVELS // (_HIGHEST - _LOWEST + 1)


def _escaped(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")
