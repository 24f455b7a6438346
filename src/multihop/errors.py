"""Errors that a user can act on. The command line prints them as one line, without a traceback."""


class MultihopError(Exception):
    """What is wrong, where, and what to do: a message for the person at the keyboard."""


class ConfigError(MultihopError):
    """params.yaml holds something impossible."""


class DataError(MultihopError):
    """A data file is missing, malformed or inconsistent."""


class ReplayMiss(MultihopError):
    """A response or vector is not stored and nothing that could make it is allowed or there."""


class EndpointError(MultihopError):
    """The model's endpoint can't be used at all: no key, wrong key, unknown model, unreachable."""


class BudgetExceeded(MultihopError):
    """The money, call or token ceiling of the run is reached."""


def first_error(error: BaseException) -> BaseException:
    """The first of what several tasks at once came to, where they come in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
