"""The application that has the commands: "timerstore.contrib.django" in INSTALLED_APPS."""

from django.apps import AppConfig


class TimerStoreConfig(AppConfig):
    """Its label is not "django", which would stand for Django itself."""

    name = "timerstore.contrib.django"
    label = "timerstore_tasks"
    verbose_name = "timerstore tasks"
