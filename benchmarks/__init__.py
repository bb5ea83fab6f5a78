"""Programs that measure timerstore, and two demonstrations; README.md starts a reader off."""
