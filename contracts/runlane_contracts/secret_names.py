"""Which names say that a value is a secret: the same for who masks at the source and for the redaction filter."""

# Lower case, without what separates words.
_NAMES = frozenset({
    "password", "passwd", "passphrase", "pwd", "secret", "token", "authorization", "proxyauthorization", "cookie",
    "setcookie", "credentials",
})  # fmt: skip
_ENDINGS = (
    "password", "passwd", "passphrase", "secret", "apikey", "accesstoken", "refreshtoken", "authtoken", "idtoken",
    "sessiontoken", "bearertoken", "apitoken", "privatekey", "secretkey", "accesskey", "signingkey", "encryptionkey",
    "accountkey",
)  # fmt: skip


def is_secret_name(name: str) -> bool:
    """Whether what stands under this name is a secret whatever it holds (``password``, ``X-Api-Key``)."""
    plain = "".join(one for one in name.lower() if one.isalnum())
    return plain in _NAMES or plain.endswith(_ENDINGS)
