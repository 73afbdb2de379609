"""An identity provider for tests: keys that it makes, a file with them, and tokens that it signs."""

import json
import time
from functools import cache
from pathlib import Path
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ISSUER = "https://login.example.com"
AUDIENCE = "penstock"


@cache
def keys(number: int) -> dict[str, Any]:
    """One key of each kind, made once, because RSA takes a tenth of a second."""
    del number
    return {
        "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": Ed25519PrivateKey.generate(),
    }


class Provider:
    """One issuer with one key of each kind; with another number, they are others."""

    def __init__(self, issuer: str = ISSUER, number: int = 0) -> None:
        self.issuer = issuer
        self.keys = dict(keys(number))

    def key_set(self) -> bytes:
        """The public keys, as an identity provider publishes them."""
        made = []
        for algorithm, key in self.keys.items():
            known = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
            made.append({**known, "kid": algorithm.lower(), "alg": algorithm, "use": "sig"})
        return json.dumps({"keys": made}).encode()

    def publish(self, path: Path) -> Self:
        """Write the keys to a file."""
        path.write_bytes(self.key_set())
        return self

    def token(self, algorithm: str = "RS256", *, now: float | None = None, **claims: Any) -> str:
        """A token; claims that are None are left out."""
        at = int(time.time() if now is None else now)
        all_claims = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "sub": "anna",
            "iat": at,
            "exp": at + 300,
            **claims,
        }
        given = {name: value for name, value in all_claims.items() if value is not None}
        return jwt.encode(given, self.keys[algorithm], algorithm, headers={"kid": algorithm.lower()})


def settings(path: Path) -> dict[str, object]:
    """The settings of a broker that accepts the tokens of a provider."""
    return {"oauth.issuer": ISSUER, "oauth.audience": AUDIENCE, "oauth.jwks_file": str(path)}
