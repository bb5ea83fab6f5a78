"""One module for each command; Django finds them here."""
