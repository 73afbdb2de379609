"""The start with authentication: there must be a way in, and no default one."""

from penstock.core.security.authenticator import Authenticator
from penstock.errors import PenstockError, Reason
from penstock.settings import LISTENERS, ClientAuth, Settings

_PEER = "peer"
"""The listener for other nodes, whose certificates let no client in."""
ADMIN = "admin"
"""The user whose password is in ``security.admin_password_file``."""


async def make_first_admin(authenticator: Authenticator, password: str, now_ms: int) -> bool:
    """Create the user ``admin``, if there are no users at all. Whether it was created."""
    if len(authenticator.users):
        return False
    scram = await authenticator.hashed(password)
    try:
        await authenticator.users.create(ADMIN, scram, now_ms, admin=True, only_first=True)
    except PenstockError as error:
        # Another node of the cluster was faster.
        if error.reason is not Reason.USER_ALREADY_EXISTS:
            raise
        return False
    return True


def require_a_way_in(authenticator: Authenticator, settings: Settings) -> None:
    """INVALID_CONFIG if nobody could log in, because there is neither a user nor an identity provider nor a client certificate."""
    if not authenticator.is_required or len(authenticator.users) or authenticator.tokens.is_on:
        return
    if _takes_certificates(settings):
        return
    raise PenstockError(
        Reason.INVALID_CONFIG,
        "security.authentication is required, but there are no users: create the first one with "
        f"'penstock user create NAME --admin --password-file FILE --data-dir {settings.server.data_dir}', "
        "or name a file with the password of the user admin in security.admin_password_file",
    )


def _takes_certificates(settings: Settings) -> bool:
    """Whether a client can log in with a certificate at one of the listeners."""
    own = (name for name in LISTENERS if name != _PEER and getattr(settings.listeners, name) is not None)
    listeners = (settings.tls_of(name) for name in (*own, *settings.kafka_listeners))
    return any(each.is_on and each.client_auth is not ClientAuth.NONE for each in listeners)
