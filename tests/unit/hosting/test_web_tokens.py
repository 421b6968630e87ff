"""JSON Web Tokens: who is let in, and everything that is not."""

import base64
import hashlib
import hmac
import http.server
import json
import threading
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, strategies as st
from pydantic import SecretStr

from runlane.hosting.access import authorizer_of
from runlane.hosting.authorizer import EVERY_RIGHT, Right, lost
from runlane.hosting.revoked_tokens import revoked_in
from runlane.hosting.settings import AccessSettings, SettingsInvalid
from runlane.hosting.token_keys import FixedKeys, ServedKeys, keys_of_jwks, keys_of_secret
from runlane.hosting.web_tokens import TokenAuthorizer, TokenRules
from runlane_contracts.problems import Code
from support.eventually import eventually
from support.tokens import AUDIENCE, ISSUER, NOON, Clock, Issuer, jwks

PINNED = ("RS256", "ES256", "EdDSA")
RULES = TokenRules(issuer=ISSUER, audience=AUDIENCE)


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def authorizer(*issuers: Issuer, clock: Clock, rules: TokenRules = RULES, pinned=PINNED) -> TokenAuthorizer:
    return TokenAuthorizer(rules, FixedKeys(keys_of_jwks(jwks(*issuers), pinned)), now=clock)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_whom_an_issuer_vouches_for_comes_with_its_tenant_its_rights_and_its_end(algorithm, clock):
    issuer = Issuer(algorithm)
    who = await authorizer(issuer, clock=clock).authenticate(issuer.token())
    assert who is not None
    assert (who.tenant_id, who.subject, who.rights) == ("acme", "ann", EVERY_RIGHT)
    assert who.expires_at == NOON + timedelta(hours=1, seconds=RULES.leeway_s)


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://elsewhere.example"}, {"iss": None}, {"aud": "another"}, {"aud": None}, {"aud": []},
        {"exp": None}, {"exp": NOON - timedelta(seconds=11)}, {"exp": 0},
        {"nbf": NOON + timedelta(seconds=11)}, {"tenant_id": None}, {"tenant_id": "Acme"}, {"tenant_id": ["acme"]},
        {"tenant_id": "a.b"}, {"sub": None}, {"sub": ""}, {"sub": "a\nb"}, {"sub": "x" * 257},
    ],
)  # fmt: skip
async def test_a_token_that_lacks_something_or_is_for_others_lets_nobody_in(issuer, clock, claims):
    keys = authorizer(issuer, clock=clock)
    assert await keys.authenticate(issuer.token()) is not None
    assert await keys.authenticate(issuer.token(**claims)) is None


@pytest.mark.parametrize("claims", [{"exp": "soon"}, {"exp": True}, {"exp": float("inf")}, {"nbf": "x"}, {"sub": 7}])
async def test_claims_of_the_wrong_kind_let_nobody_in(issuer, clock, claims):
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "tenant_id": "acme", "exp": 10**10} | claims
    token = jwt.api_jws.encode(json.dumps(said).encode(), issuer.key, "ES256", headers={"kid": "k1"})
    assert await authorizer(issuer, clock=clock).authenticate(token) is None


async def test_an_end_beyond_all_time_is_no_fault(issuer, clock):
    assert await authorizer(issuer, clock=clock).authenticate(issuer.token(exp=10**15)) is not None


async def test_clocks_may_differ_a_little(issuer, clock):
    keys = authorizer(issuer, clock=clock)
    assert await keys.authenticate(issuer.token(nbf=NOON + timedelta(seconds=9))) is not None
    assert await keys.authenticate(issuer.token(exp=NOON - timedelta(seconds=9))) is not None


async def test_a_token_ends_for_those_who_ask_again_too(issuer, clock):
    """Fails without `has_expired` in `revalidate`."""
    keys = authorizer(issuer, clock=clock)
    who = await keys.authenticate(issuer.token())
    assert who is not None
    clock.passes(3609)
    assert keys.revalidate(who) == who
    clock.passes(1)
    assert lost(keys, who, Right.VIEW) is Code.UNAUTHENTICATED
    assert await keys.authenticate(issuer.token()) is None


async def test_unsigned_and_otherwise_signed_tokens_let_nobody_in(issuer, clock):
    """Fails when the algorithm is taken from the token instead of the key."""
    keys = authorizer(issuer, clock=clock, pinned=(*PINNED, "HS256"))
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "tenant_id": "acme", "exp": NOON + timedelta(hours=1)}
    public = issuer.key.public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    raw = public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    head, body, signature = issuer.token().split(".")
    eve = Issuer(key_id="k1")
    forged = [
        jwt.encode(claims, None, "none", headers={"kid": "k1"}), f"{head}.{body}.", f"{head}.{body}.{signature[::-1]}",
        *(hmac_signed(claims, key) for key in (pem, raw)),
        eve.token(), Issuer(key_id="k2").token(), Issuer("RS256").token(),
        issuer.token(headers={"crit": ["exp"]}),
        eve.token(headers={"jwk": eve.jwk}), eve.token(headers={"jku": "https://eve.example/jwks"}),
    ]  # fmt: skip
    for token in forged:
        assert await keys.authenticate(token) is None, token


def hmac_signed(claims: dict, key: bytes) -> str:
    """As an attacker does it: PyJWT refuses to."""
    said = {**claims, "exp": claims["exp"].timestamp()}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
             for part in ({"alg": "HS256", "typ": "JWT", "kid": "k1"}, said)]  # fmt: skip
    signature = hmac.digest(key, b".".join(parts), hashlib.sha256)
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


async def test_a_token_that_is_cut_or_changed_anywhere_lets_nobody_in(issuer, clock):
    keys, token = authorizer(issuer, clock=clock), issuer.token()
    for place in range(len(token) - 1):  # the last character of a signature holds two bits that mean nothing
        other = "A" if token[place] != "A" else "B"
        assert await keys.authenticate(token[:place] + other + token[place + 1 :]) is None
        assert await keys.authenticate(token[:place]) is None


@given(st.text(max_size=200) | st.lists(st.text("abcdefgh0-_=", max_size=60), max_size=4).map(".".join))
async def test_nonsense_is_nobody_and_no_fault(text):
    keys = TokenAuthorizer(RULES, FixedKeys(keys_of_secret(b"x" * 32, ["HS256"])), now=Clock())
    assert await keys.authenticate(text) is None


async def test_rights_come_from_the_claim_that_the_settings_name(issuer, clock):
    at_path = TokenRules(
        issuer=ISSUER, audience=AUDIENCE, tenant_claim="https://acme.example/tenant", subject_claim="email",
        rights_claim="realm_access.roles", rights_prefix="", default_rights=frozenset({Right.VIEW}),
    )  # fmt: skip
    keys = authorizer(issuer, clock=clock, rules=at_path)
    claims = {"tenant_id": "wrong", "https://acme.example/tenant": "acme", "email": "ann@acme.example"}
    both = await keys.authenticate(issuer.token(**claims, realm_access={"roles": ["view", "operate", "admin", 7]}))
    plain = await keys.authenticate(issuer.token(**claims))
    assert both is not None
    assert plain is not None
    assert (both.tenant_id, both.subject) == ("acme", "ann@acme.example")
    assert (both.rights, plain.rights) == ({Right.VIEW, Right.OPERATE}, {Right.VIEW})


@pytest.mark.parametrize(
    ("scope", "rights"),
    [("runlane:view", {Right.VIEW}), ("view operate", set()), (None, set()), (["runlane:produce"], {Right.PRODUCE}),
     ("runlane:everything", set()), ({"runlane:view": True}, set())],
)  # fmt: skip
async def test_no_right_is_guessed(issuer, clock, scope, rights):
    who = await authorizer(issuer, clock=clock).authenticate(issuer.token(scope=scope))
    assert who is not None
    assert who.rights == rights


async def test_a_key_that_leaves_the_file_takes_its_tokens_along(tmp_path: Path, clock):
    old, new = Issuer(key_id="old"), Issuer(key_id="new")
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(old))
    settings = AccessSettings(jwt_jwks_file=path, jwt_issuer=ISSUER, jwt_audience=AUDIENCE)
    async with authorizer_of(settings, now=clock) as keys:
        who = await keys.authenticate(old.token())
        assert who is not None
        assert await keys.authenticate(new.token()) is None
        path.write_bytes(jwks(old, new))
        clock.passes(1)
        assert await keys.authenticate(new.token()) is not None
        assert keys.revalidate(who) == who
        path.write_bytes(jwks(new))
        clock.passes(1)
        assert keys.revalidate(who) is None
        assert await keys.authenticate(old.token()) is None


async def test_another_key_of_the_same_name_is_another_key(tmp_path: Path, clock):
    path = tmp_path / "jwks.json"
    first, second = Issuer(key_id=None), Issuer(key_id=None)
    path.write_bytes(jwks(first))
    settings = AccessSettings(jwt_jwks_file=path, jwt_issuer=ISSUER, jwt_audience=AUDIENCE)
    async with authorizer_of(settings, now=clock) as keys:
        who = await keys.authenticate(first.token())
        path.write_bytes(jwks(second))
        clock.passes(1)
        assert who is not None
        assert keys.revalidate(who) is None
        assert await keys.authenticate(second.token()) is not None


async def test_keys_for_other_uses_and_of_unknown_kinds_are_passed_over(issuer, clock):
    other = Issuer(key_id="k2")
    odd = ({**other.jwk, "use": "enc"}, {"kty": "XYZ", "kid": "k3"}, {"kid": "k4"}, {**other.jwk, "x": "!!"},
           {**other.jwk, "key_ops": ["sign"]}, {**other.jwk, "alg": "ES512"})  # fmt: skip
    source = FixedKeys(keys_of_jwks(jwks(issuer, more=odd), PINNED))
    keys = TokenAuthorizer(RULES, source, now=clock)
    assert await keys.authenticate(issuer.token()) is not None
    assert await keys.authenticate(other.token()) is None


ODD = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.text(max_size=5), max_size=2)
ENTRY = {"kty": ["RSA", "EC", "OKP", "oct"], "use": ["sig"], "alg": list(PINNED), "kid": ["k1"], "n": ["AQAB"],
         "e": ["AQAB"], "x": ["AQAB"], "y": ["AQAB"], "crv": ["P-256", "Ed25519"], "k": ["AQAB"],
         "key_ops": [["verify"]]}  # fmt: skip


@given(
    st.lists(st.fixed_dictionaries({}, optional={name: ODD | st.sampled_from(ok) for name, ok in ENTRY.items()}))
    | st.lists(ODD)
)
def test_a_key_set_of_nonsense_is_none_or_is_refused_by_name(entries):
    try:
        keys_of_jwks(json.dumps({"keys": entries}).encode(), (*PINNED, "HS256"))
    except ValueError:
        assert not all(isinstance(entry, dict) for entry in entries)


class Served:
    """What an issuer serves."""

    def __init__(self, content: bytes) -> None:
        self.content, self.status, self.asked = content, 200, 0

    def __call__(self, _request: httpx.Request) -> httpx.Response:
        self.asked += 1
        return httpx.Response(self.status, content=self.content)


async def test_a_new_key_is_fetched_when_a_token_names_it_and_not_for_every_one_that_does(issuer, clock):
    new = Issuer(key_id="new")
    served = Served(jwks(issuer))
    async with httpx.AsyncClient(transport=httpx.MockTransport(served)) as client:
        source = ServedKeys("https://login.example/jwks", PINNED, client, now=clock)
        keys = TokenAuthorizer(RULES, source, now=clock)
        assert await keys.authenticate(issuer.token()) is not None
        served.content = jwks(issuer, new)
        for _ in range(20):
            assert await keys.authenticate(new.token()) is None
        assert served.asked == 1
        clock.passes(10)
        assert await keys.authenticate(new.token()) is not None
        assert await keys.authenticate(issuer.token()) is not None
        assert served.asked == 2


@pytest.mark.parametrize(("status", "content"), [(500, b""), (302, b""), (200, b"<html>"), (200, b"x" * 2_000_000)])
async def test_an_issuer_that_cannot_answer_leaves_the_keys(issuer, clock, status, content):
    served = Served(jwks(issuer))
    async with httpx.AsyncClient(transport=httpx.MockTransport(served)) as client:
        source = ServedKeys("https://login.example/jwks", PINNED, client, now=clock)
        assert await source.fetch()
        served.status, served.content = status, content
        assert not await source.fetch()
        assert await TokenAuthorizer(RULES, source, now=clock).authenticate(issuer.token()) is not None


async def test_a_secret_that_is_served_proves_nothing(clock):
    secret = b"s" * 32
    entry = {"kty": "oct", "kid": "k1", "k": base64.urlsafe_b64encode(secret).rstrip(b"=").decode()}
    served = Served(json.dumps({"keys": [entry]}).encode())
    async with httpx.AsyncClient(transport=httpx.MockTransport(served)) as client:
        source = ServedKeys("https://login.example/jwks", (*PINNED, "HS256"), client, now=clock)
        keys = TokenAuthorizer(RULES, source, now=clock)
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "tenant_id": "acme", "exp": NOON + timedelta(hours=1)}
        assert await keys.authenticate(jwt.encode(claims, secret, "HS256", headers={"kid": "k1"})) is None


async def test_api_keys_and_tokens_are_let_in_side_by_side(clock):
    settings = AccessSettings(
        api_keys=SecretStr("demo:key-one"), jwt_secret=SecretStr("s" * 32), jwt_issuer=ISSUER, jwt_audience=AUDIENCE
    )
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "tenant_id": "acme", "exp": NOON + timedelta(hours=1)}
    async with authorizer_of(settings, now=clock) as both:
        by_key = await both.authenticate("key-one")
        by_token = await both.authenticate(jwt.encode(claims, "s" * 32, "HS256"))
        assert by_key is not None
        assert by_token is not None
        assert (by_key.tenant_id, by_token.tenant_id) == ("demo", "acme")
        assert (both.revalidate(by_key), both.revalidate(by_token)) == (by_key, by_token)
        clock.passes(3610)
        assert (both.revalidate(by_key), both.revalidate(by_token)) == (by_key, None)


@pytest.mark.parametrize(
    ("revocation", "is_out"),
    [
        ({"jti": "t1"}, True), ({"jti": "t2"}, False), ({"jti": "t1", "tenant_id": "other"}, False),
        ({"subject": "ann"}, True), ({"subject": "bob"}, False), ({"subject": "ann", "tenant_id": "acme"}, True),
        ({"subject": "ann", "tenant_id": "other"}, False),
        ({"subject": "ann", "before": "2026-03-01T13:00:00+01:00"}, True),
        ({"subject": "ann", "before": "2026-03-01T11:59:00Z"}, False),
    ],
)  # fmt: skip
async def test_a_token_is_revoked_before_its_time_by_its_name_or_its_subject(
    tmp_path, issuer, clock, revocation, is_out
):
    path, keys_path = tmp_path / "revoked.json", tmp_path / "jwks.json"
    path.write_text("[]")
    keys_path.write_bytes(jwks(issuer))
    settings = AccessSettings(
        jwt_jwks_file=keys_path, jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_revoked_file=path
    )  # fmt: skip
    token = issuer.token(jti="t1", iat=NOON - timedelta(seconds=30))
    async with authorizer_of(settings, now=clock) as keys:
        who = await keys.authenticate(token)
        assert who is not None
        path.write_text(json.dumps([{"jti": "another"}, revocation]))
        clock.passes(1)
        assert (keys.revalidate(who) is None) is is_out
        assert (await keys.authenticate(token) is None) is is_out
        again = issuer.token(jti="t3", iat=NOON + timedelta(seconds=1))
        assert (await keys.authenticate(again) is not None) is (
            not is_out or "jti" in revocation or "before" in revocation
        )


async def test_a_token_that_says_not_when_it_was_issued_is_older_than_any(tmp_path, issuer, clock):
    path = tmp_path / "revoked.json"
    path.write_text('[{"subject": "ann", "before": "1999-01-01T00:00:00Z"}]')
    source = FixedKeys(keys_of_jwks(jwks(issuer), PINNED))
    keys = TokenAuthorizer(RULES, source, now=clock, is_revoked=revoked_in(path, now=clock))
    assert await keys.authenticate(issuer.token()) is None
    assert await keys.authenticate(issuer.token(iat=NOON)) is not None


@pytest.mark.parametrize(
    "content",
    ["[{}]", '[{"tenant_id": "acme"}]', '[{"jti": "a", "subject": "b"}]', '[{"jti": ""}]', "{}",
     '[{"subject": "a", "before": "2026-03-01"}]'],
)  # fmt: skip
def test_a_revocation_that_would_mean_everybody_or_nothing_is_refused(tmp_path, clock, content):
    path = tmp_path / "revoked.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"revoked\.json"):
        revoked_in(path, now=clock)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"jwt_secret": "s" * 31}, "32 bytes"),
        ({"jwt_secret": "s" * 32, "jwt_algorithms": "HS512"}, "64 bytes"),
        ({"jwt_secret": "s" * 32, "jwt_algorithms": "none"}, "none"),
        ({"jwt_secret": "s" * 32, "jwt_algorithms": "HS256,RS256"}, "RS256"),
        ({"jwt_secret": "s" * 32, "jwt_audience": None}, "AUDIENCE"),
        ({"jwt_secret": "s" * 32, "jwt_issuer": None}, "ISSUER"),
        ({"jwt_secret": "s" * 32, "jwt_jwks_url": "https://x"}, "only one"),
        ({"jwt_jwks_url": "http://login.example/jwks"}, "https"),
        ({"jwt_jwks_url": "https://login.example/jwks", "jwt_algorithms": "HS256"}, "HS256"),
        ({"jwt_secret": "s" * 32, "jwt_default_rights": "all"}, "all"),
    ],
)
async def test_settings_that_make_no_sense_are_refused_at_the_start(given, complaint):
    settings = AccessSettings(**{"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE} | given)
    with pytest.raises(SettingsInvalid, match=complaint):
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(authorizer_of(settings))


async def test_an_issuer_that_comes_up_late_is_waited_for(issuer, clock):
    """Over real HTTP: nothing listens at first, and nobody is let in; then somebody serves the keys."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), KeyServer, bind_and_activate=False)
    server.server_bind()
    url = f"http://127.0.0.1:{server.server_port}/jwks"
    settings = AccessSettings(jwt_jwks_url=url, jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_jwks_refresh_s=1)
    async with authorizer_of(settings, now=clock) as keys:
        assert await keys.authenticate(issuer.token()) is None
        KeyServer.content = jwks(issuer)
        server.server_activate()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:

            async def is_in() -> bool:
                return await keys.authenticate(issuer.token()) is not None

            await eventually(is_in)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class KeyServer(http.server.BaseHTTPRequestHandler):
    content = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
