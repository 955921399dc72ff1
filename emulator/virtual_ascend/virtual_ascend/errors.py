"""What the user has to know before anything runs."""


class SetupError(Exception):
    """Something that is needed is not there; the message says what came and what is needed."""
