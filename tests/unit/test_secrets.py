"""No secret is shown with the value that holds it: in a log, a traceback or a failed assertion."""

from __future__ import annotations

import pytest

from gateway.requests import Authenticate, ChangePassword, CreateUser
from gateway.wire.session import ClientContext, Credentials

SECRET = "hunter2"


@pytest.mark.parametrize(
    "holder",
    [
        ClientContext(Credentials(api_key=SECRET, username="ann", password=SECRET, token=SECRET)),
        Authenticate(1, username="ann", password=SECRET, api_key=SECRET, token=SECRET),
        CreateUser(1, "ann", SECRET),
        ChangePassword(1, "ann", SECRET, SECRET),
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_who_holds_a_secret_shows_the_name_only(holder: object) -> None:
    assert "ann" in repr(holder)
    assert SECRET not in repr(holder)
