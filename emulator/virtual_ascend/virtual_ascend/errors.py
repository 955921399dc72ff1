"""Report what the user has to know before anything runs."""


class SetupError(Exception):
    """Report a missing requirement; the message says what came and what is needed."""
