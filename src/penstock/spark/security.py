"""TLS and credentials in the options of a query, with the names that Spark's Kafka connector uses.

Only PEM is supported, as files or as text. Tasks read files where they run: a path that does not exist there is looked up by its name among
the files of ``--files`` and ``SparkContext.addFile``. Values of options are never part of an error.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from penstock.client.errors import InvalidSecurity
from penstock.client.security import ClientSecurity, Mechanism
from penstock.spark.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.spark.options import SparkOptions

_PROTOCOL: Final = "kafka.security.protocol"
_MECHANISM: Final = "kafka.sasl.mechanism"
_JAAS: Final = "kafka.sasl.jaas.config"
_USER: Final = "kafka.sasl.username"
_PASSWORD: Final = "kafka.sasl.password"  # noqa: S105  the name of an option
_PASSWORD_FILE: Final = "kafka.sasl.password.file"  # noqa: S105
_TOKEN: Final = "kafka.sasl.oauthbearer.token"  # noqa: S105
_TOKEN_URL: Final = "kafka.sasl.oauthbearer.token.endpoint.url"  # noqa: S105
_CA_FILE: Final = "kafka.ssl.truststore.location"
_CA: Final = "kafka.ssl.truststore.certificates"
_CERT_FILE: Final = "kafka.ssl.keystore.location"
_CERT: Final = "kafka.ssl.keystore.certificate.chain"
_KEY: Final = "kafka.ssl.keystore.key"
_KEY_FILE: Final = "kafka.ssl.keystore.key.location"
_KEY_PASSWORD: Final = "kafka.ssl.key.password"  # noqa: S105
_NAMES: Final = "kafka.ssl.endpoint.identification.algorithm"
_SERVER_NAME: Final = "kafka.ssl.server.name"
_STORE_TYPES: Final = ("kafka.ssl.truststore.type", "kafka.ssl.keystore.type")
_STORE_FILES: Final = (_CA_FILE, _CERT_FILE)

USED: Final = frozenset(
    {
        _PROTOCOL,
        _MECHANISM,
        _JAAS,
        _USER,
        _PASSWORD,
        _PASSWORD_FILE,
        _TOKEN,
        _TOKEN_URL,
        _CA_FILE,
        _CA,
        _CERT_FILE,
        _CERT,
        _KEY,
        _KEY_FILE,
        _KEY_PASSWORD,
        _NAMES,
        _SERVER_NAME,
        *_STORE_TYPES,
    }
)
REFUSED: Final = {
    "kafka.ssl.truststore.password": "a truststore in PEM has no password: remove the option",
    "kafka.ssl.keystore.password": "a keystore in PEM has no password: use kafka.ssl.key.password for its private key",
    "kafka.ssl.engine.factory.class": "Java classes are not supported",
    "kafka.sasl.client.callback.handler.class": "Java classes are not supported",
    "kafka.sasl.login.callback.handler.class": "Java classes are not supported",
    "kafka.sasl.login.class": "Java classes are not supported",
    "kafka.sasl.kerberos.service.name": "Kerberos is not supported",
}
_PROTOCOLS: Final = {
    # The protocol: TLS, a login.
    "plaintext": (False, False),
    "ssl": (True, False),
    "sasl_plaintext": (False, True),
    "sasl_ssl": (True, True),
}
_MECHANISMS: Final = {each.value.lower(): each for each in Mechanism}
_MODULES: Final = {
    "PlainLoginModule": Mechanism.PLAIN,
    "ScramLoginModule": Mechanism.SCRAM_SHA_256,
    "OAuthBearerLoginModule": Mechanism.OAUTHBEARER,
}
_JAAS_FORM: Final = re.compile(r"([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*?);?", re.DOTALL)
_JAAS_FIELD: Final = re.compile(
    r"""\s*([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))""", re.DOTALL
)
_BINARY_STORES: Final = (".jks", ".p12", ".pfx", ".pkcs12", ".keystore", ".truststore", ".bcfks")


def security_of(options: SparkOptions) -> ClientSecurity:
    """TLS and credentials of these options; :class:`OptionError` if they contradict each other or are not supported."""
    for name, reason in REFUSED.items():
        if name in options:
            raise OptionError(f"The option {name} is not supported: {reason}")
    is_tls, is_login = options.choice(_PROTOCOL, _PROTOCOLS, default=(False, False))
    tls = _tls(options) if is_tls else {}
    login = _login(options) if is_login else {}
    _refuse_unused(options, is_tls=is_tls, is_login=is_login)
    try:
        security = ClientSecurity(
            tls=is_tls,
            may_send_unencrypted=is_login and not is_tls,
            verify_name=not is_tls or _verifies_name(options),
            mechanism=_mechanism(options) if is_login else None,
            **tls,
            **login,
        )
    except InvalidSecurity as error:
        raise OptionError(f"The options kafka.ssl.* and kafka.sasl.*: {error}") from None
    if is_login and security.sasl_mechanism is None:
        raise OptionError(
            f"The option {_PROTOCOL} requires credentials: set {_USER} with {_PASSWORD_FILE}, or {_TOKEN_URL}"
        )
    return security


def options_for(security: ClientSecurity) -> dict[str, str]:
    """The options that mean this security, for queries of the command line and of pipelines."""
    mechanism = security.sasl_mechanism
    protocol = f"{'SASL_' if mechanism else ''}{'SSL' if security.uses_tls else 'PLAINTEXT'}"
    if protocol == "PLAINTEXT":
        return {}
    found = {
        _PROTOCOL: protocol,
        _CA_FILE: _absolute(security.ca_file),
        _CA: security.ca_pem,
        _CERT_FILE: _absolute(security.cert_file),
        _KEY_FILE: _absolute(security.key_file),
        _CERT: security.cert_pem,
        _KEY: security.key_pem,
        _KEY_PASSWORD: security.key_password,
        _SERVER_NAME: security.server_name,
        _NAMES: None if security.verify_name else "",
        _MECHANISM: security.mechanism,
        _USER: security.user,
        _PASSWORD: security.password,
        _PASSWORD_FILE: _absolute(security.password_file),
        _TOKEN: security.token,
        _TOKEN_URL: None if security.token_file is None else f"file://{_absolute(security.token_file)}",
    }
    return {name: value for name, value in found.items() if value is not None}


def _tls(options: SparkOptions) -> dict[str, str | None]:
    for name in _STORE_TYPES:
        kind = options.get(name, "PEM").strip().upper()
        if kind != "PEM":
            raise OptionError(
                f"The option {name} is {kind}: only PEM is supported. keytool -exportcert -rfc writes the certificates of a store as PEM"
            )
    for name in _STORE_FILES:
        if options.get(name, "").strip().lower().endswith(_BINARY_STORES):
            raise OptionError(
                f"The option {name} must be a PEM file. keytool -exportcert -rfc writes the certificates of a store as PEM"
            )
    return {
        "ca_file": _file(options, _CA_FILE),
        "ca_pem": _text(options, _CA),
        "cert_file": _file(options, _CERT_FILE),
        "key_file": _file(options, _KEY_FILE),
        "cert_pem": _text(options, _CERT),
        "key_pem": _text(options, _KEY),
        "key_password": options.get(_KEY_PASSWORD),
        "server_name": _text(options, _SERVER_NAME),
    }


def _login(options: SparkOptions) -> dict[str, str | None]:
    if _mechanism(options) in (None, Mechanism.OAUTHBEARER) and (_TOKEN in options or _TOKEN_URL in options):
        return {"token": _text(options, _TOKEN), "token_file": _token_file(options)}
    jaas = _jaas(options)[1]
    user, password = options.get(_USER, jaas.get("username")), options.get(_PASSWORD, jaas.get("password"))
    return {"user": user, "password": password, "password_file": _file(options, _PASSWORD_FILE)}


def _mechanism(options: SparkOptions) -> Mechanism | None:
    """The mechanism that the options choose; None if the kind of the credentials does."""
    module = _jaas(options)[0]
    if _MECHANISM not in options:
        return module
    mechanism = options.choice(_MECHANISM, _MECHANISMS, default=Mechanism.SCRAM_SHA_256)
    if module is not None and _kind(module) != _kind(mechanism):
        raise OptionError(f"The login module in {_JAAS} is not for {mechanism}, the value of {_MECHANISM}")
    return mechanism


def _kind(mechanism: Mechanism) -> str:
    return mechanism.value.partition("-")[0]


def _jaas(options: SparkOptions) -> tuple[Mechanism | None, dict[str, str]]:
    """The mechanism and the fields of ``kafka.sasl.jaas.config``."""
    text = _text(options, _JAAS)
    if text is None:
        return None, {}
    form = _JAAS_FORM.fullmatch(text)
    module = "" if form is None else form[1].rpartition(".")[2]
    if form is None or module not in _MODULES:
        wanted = f"write one of {', '.join(_MODULES)}, followed by required and its fields"
        raise OptionError(
            f"The option {_JAAS} {'is not valid' if form is None else f'has the module {module}'}: {wanted}"
        )
    fields: dict[str, str] = {}
    position, rest = 0, form[2].rstrip()
    while position < len(rest):
        found = _JAAS_FIELD.match(rest, position)
        if found is None:
            raise OptionError(f'The option {_JAAS} is not valid: write its fields as username="..." password="...";')
        quoted = found[2] if found[2] is not None else found[3]
        fields[found[1]] = found[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        position = found.end()
    return _MODULES[module], fields


def _token_file(options: SparkOptions) -> str | None:
    url = _text(options, _TOKEN_URL)
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise OptionError(
            f"The option {_TOKEN_URL} must be file:///PATH, a file that holds the current token: tokens are not requested here"
        )
    return _located(unquote(parts.path))


def _verifies_name(options: SparkOptions) -> bool:
    return options.choice(_NAMES, {"https": True, "": False}, default=True)


def _refuse_unused(options: SparkOptions, *, is_tls: bool, is_login: bool) -> None:
    """Refuse what would have no effect: a query that was meant to be secure must not run without."""
    for name in options:
        known = name in USED and name != _PROTOCOL
        if known and name.startswith("kafka.ssl.") and not is_tls:
            raise OptionError(f"The option {name} needs {_PROTOCOL} SSL or SASL_SSL")
        if known and name.startswith("kafka.sasl.") and not is_login:
            raise OptionError(f"The option {name} needs {_PROTOCOL} SASL_SSL or SASL_PLAINTEXT")


def _text(options: Mapping[str, str], name: str) -> str | None:
    return options.get(name, "").strip() or None


def _file(options: Mapping[str, str], name: str) -> str | None:
    path = _text(options, name)
    return None if path is None else _located(path.removeprefix("file://"))


def _located(path: str) -> str:
    """The path, or the file of this name that Spark brought to this machine."""
    if os.path.exists(path):
        return path
    from pyspark import SparkFiles

    try:
        brought = SparkFiles.get(os.path.basename(path))
    except Exception:  # noqa: BLE001  there is no context in this process, so there are no files
        return path
    return brought if os.path.exists(brought) else path


def _absolute(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(path)
