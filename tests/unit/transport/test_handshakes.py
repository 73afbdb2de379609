import ssl

import pytest

from penstock.transport.handshakes import DISCONNECTED, NOT_TLS, TIMEOUT, why


def failed(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (ConnectionResetError(), DISCONNECTED.label),
        (ConnectionAbortedError("SSL handshake is taking longer than 10 seconds"), TIMEOUT.label),
        (failed("WRONG_VERSION_NUMBER"), NOT_TLS.label),
        (failed("PEER_DID_NOT_RETURN_A_CERTIFICATE"), "no_certificate"),
        (failed("SOMETHING_NEW"), "other"),
        (OSError("strange"), "other"),
    ],
)
def test_every_failure_has_a_label_and_words(error: OSError, label: str) -> None:
    found = why(error)
    assert found.label == label
    assert found.words


def test_a_reason_that_is_not_known_is_still_readable() -> None:
    assert why(failed("SOMETHING_NEW")).words == "something new"
