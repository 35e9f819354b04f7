"""The one small hierarchy of errors a user can meet. Each message says what happened, with which value, and what to do."""


class NetgainError(Exception):
    """A failure with a message for the user: the CLI prints it as one line and exits with `exit_code`."""

    exit_code = 1


class UsageError(NetgainError):
    """The input cannot be used as given (a bad flag, file, model or request)."""

    exit_code = 2


class RequestRejected(UsageError):
    """The engine refuses this request at once; `parameter` names what to change."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class Unavailable(NetgainError):
    """Something needed (registry, engine process, compiler, browser) is not there now."""


class Overloaded(NetgainError):
    """A limit on work in flight is reached; the same request may succeed later, after about `retry_after_s` where known."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ExecutorFailed(NetgainError):
    """A step could not be computed; the message names the cause."""
