"""Made-up secrets, one or more for every rule, put together here so that no scanner of sources takes them for real."""

import base64
import random
import string

_ALNUM = string.ascii_letters + string.digits


def _random(alphabet: str, length: int, seed: int) -> str:
    made = "".join(random.Random(seed).choices(alphabet, k=length - 2))
    return made + "7x" if "x" in alphabet else made + "7Q"


def tokens() -> dict[str, tuple[str, str]]:
    """Name → (rule id, token): what has to be masked whole wherever it stands."""
    word = _ALNUM + "_-"
    return {
        "anthropic": ("anthropic-key", "sk-" + "ant-api03-" + _random(word, 93, 1)),
        "openai project": ("openai-key", "sk-" + "proj-" + _random(word, 120, 2)),
        "openai service": ("openai-key", "sk-" + "svcacct-" + _random(word, 60, 3)),
        "openai user": ("openai-key", "sk-" + _random(_ALNUM, 48, 4)),
        "github": ("github-token", "gh" + "p_" + _random(_ALNUM, 36, 5)),
        "github oauth": ("github-token", "gh" + "o_" + _random(_ALNUM, 36, 6)),
        "github server": ("github-token", "gh" + "s_" + _random(_ALNUM, 36, 7)),
        "github fine-grained": ("github-token", "github" + "_pat_" + _random(_ALNUM, 82, 8)),
        "gitlab": ("gitlab-token", "gl" + "pat-" + _random(word, 20, 9)),
        "aws key id": ("aws-key-id", "AK" + "IA" + _random(string.ascii_uppercase + "234567", 16, 10)),
        "aws temporary key id": ("aws-key-id", "AS" + "IA" + _random(string.ascii_uppercase + "234567", 16, 11)),
        "slack bot": ("slack-token", "xo" + "xb-" + "123456789012-" + _random(_ALNUM, 24, 12)),
        "slack user": ("slack-token", "xo" + "xp-" + "123456789012-" + _random(_ALNUM, 32, 13)),
        "google": ("google-key", "AI" + "za" + _random(word, 35, 14)),
        "stripe": ("stripe-key", "sk" + "_live_" + _random(_ALNUM, 24, 15)),
        "stripe restricted": ("stripe-key", "rk" + "_live_" + _random(_ALNUM, 24, 16)),
        "npm": ("npm-token", "np" + "m_" + _random(_ALNUM, 36, 17)),
        "hugging face": ("huggingface-token", "h" + "f_" + _random(_ALNUM, 34, 18)),
        "runlane": ("runlane-key", "rl" + "k_" + _random(word, 32, 19)),
        "jwt": ("jwt", "ey" + "JhbGciOiJIUzI1NiJ9." + _random(word, 40, 20) + "." + _random(word, 43, 21)),
    }


def private_key() -> str:
    """A PEM block with the lines of one."""
    lines = [_random(_ALNUM + "+/", 64, 30 + line) for line in range(12)]
    return "\n".join(("-----BEGIN RSA PRIVATE " + "KEY-----", *lines, "-----END RSA PRIVATE " + "KEY-----"))


def in_context() -> dict[str, tuple[str, str, str]]:
    """Name → (rule id, text, the part of it that is secret)."""
    aws = _random(_ALNUM + "+/", 40, 40)
    opaque = _random(_ALNUM, 32, 41)
    basic = base64.b64encode(b"aladdin:opensesame7").decode()
    return {
        "aws secret in a file": ("aws-secret", f"aws_secret_access_key = {aws}\n", aws),
        "aws secret in the environment": ("aws-secret", f"export AWS_SECRET_ACCESS_KEY={aws}", aws),
        "bearer header": ("authorization", f"Authorization: Bearer {opaque}", opaque),
        "basic header": ("authorization", f"curl -H 'Authorization: Basic {basic}'", basic),
        "bearer alone": ("bearer-token", f"use Bearer {opaque} for it", opaque),
        "url": ("url-credentials", "postgres://app:tr0ub4dor@db.internal:5432/x", "tr0ub4dor"),
        "json text": ("named-secret", '{"user": "bob", "password": "correct horse"}', "correct horse"),
        "json text in json text": ("named-secret", r"{\"api_key\": \"correct horse\", \"a\": 1}", "correct horse"),
        "source code": ("named-secret", "client_secret = 'correct horse'", "correct horse"),
        "environment": ("named-secret", "DB_PASSWORD=hunter2hunter2 ./run", "hunter2hunter2"),
        "query": ("named-secret", "GET /x?access_token=abc123def456&page=2", "abc123def456"),
        "encoded query": ("named-secret", "next=%2Fx%3Faccess_token%3Dabc123def456%26page%3D2", "abc123def456"),
    }


def survivors() -> dict[str, str]:
    """What looks a little like a secret and is none."""
    image = base64.b64encode(random.Random(50).randbytes(200_000)).decode()
    url_safe = base64.urlsafe_b64encode(random.Random(51).randbytes(200_000)).decode()
    return {
        "image": image,
        "data url": "data:image/png;base64," + image[:4000],
        "url-safe base64": url_safe,
        "ulid": "run_01JDZ3NDEKTSV4RRFFQ69G5FAV",
        "anthropic tool id": "toolu_01A09q90qw90lq917835lq9",
        "anthropic message id": "msg_013Zva2CMHLNnjNjJKqJ2EF",
        "openai call id": "call_FqQ0Ag3wB5xX4sJc0H7zWpZk",
        "openai response id": "resp_67ccd2bed1ec8190b14f964abc0542670bb6a6b452d3795b",
        "sha256": "sha256:" + "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "uuid": "550e8400-e29b-41d4-a716-446655440000",
        "git": "commit 4cde9481f2a0c3c1e6a1e2b2b7a3f5f0c9d8e7b6",
        "cursor": "c1.lKVhY21l2SJydW5fMDFKRFozTkRFS1RTVjRSUkZGUTY5RzVGQVY.c2lnbmVk",
        "prose": "The secret of a good password is length. Ask the bearer of the token, risk-averse as she is.",
        "more prose": "Token counts: input tokens: 812, max_tokens: 4096. Authorization is required: ask Bob.",
        "schema": '{"properties": {"password": {"type": "string"}, "token": {"type": "string"}}}',
        "class names": "sk-toggleable__label-arrow sk-estimator-doc-link task-list-item-checkbox-with-long-name",
        "urls": "see https://example.com:8080/a@b and http://localhost:4222 or nats://10.0.0.1:4222, git@h.com:a/b",
        "page token": '{"next_page_token": "eyAicCI6IDEgfQ", "page_token": "abc12345"}',
        "public key": "-----BEGIN PUBLIC KEY-----\nMIIBIjANBg\n-----END PUBLIC KEY-----",
        "python": "token = next(tokens); password = getpass(); secret: str | None = None",
        "typescript": "interface Login { password: string; token?: string }",
    }
