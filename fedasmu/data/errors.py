"""The one error of this package: something is wrong with the data, and the message says what and where."""

from __future__ import annotations

from fedasmu.errors import UserError


class DataError(UserError):
    """A data set is unknown, missing, incomplete or damaged. The message is meant for the user as it stands."""
