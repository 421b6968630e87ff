"""Who may read `/metrics`, on a port that clients reach and on one that they do not."""

import httpx
import pytest

from runlane.hosting.health import Health, HealthDesk
from runlane.hosting.http import application
from runlane.hosting.scrape_gate import ScrapeGate

HERE, ELSEWHERE = ("127.0.0.1", 50_000), ("10.1.2.3", 50_000)


async def ready() -> Health:
    return Health(ready=True)


async def answered(
    *, token: str | None = None, among_clients: bool = True, client: tuple[str, int] = HERE, url: str = "http://127.0.0.1:8420",
    **headers: str,
) -> int:  # fmt: skip
    desk = HealthDesk({"a": ready}, lambda: "counted 1\n", scrapers=ScrapeGate(token))
    app = application(desk.routes()) if among_clients else desk.app()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app, client=client), base_url=url) as http:
        reply = await http.get("/metrics", headers=sent)
        assert ("counted" in reply.text) == (reply.status_code == 200)
        assert reply.status_code == 200 or reply.json()["code"] == "unauthenticated"
        return reply.status_code


@pytest.mark.parametrize("url", ["http://127.0.0.1:8420", "http://localhost", "http://[::1]:8420"])
async def test_who_asks_on_the_machine_itself_needs_no_token(url: str) -> None:
    assert await answered(url=url) == 200


@pytest.mark.parametrize("header", ["Forwarded", "X_Forwarded_For", "X_Real_Ip", "Via"])
async def test_who_comes_through_a_proxy_on_the_machine_is_a_client(header: str) -> None:
    assert await answered(**{header: "127.0.0.1"}) == 401


@pytest.mark.parametrize("host", ["runlane.example.org", "127.0.0.1.example.org", "localhost.example.org", "[::", ""])
async def test_a_page_whose_name_was_made_to_point_here_reads_nothing(host: str) -> None:
    assert await answered(Host=host) == 401


async def test_nobody_else_reads_it_where_clients_come() -> None:
    assert await answered(client=ELSEWHERE) == 401
    assert await answered(client=ELSEWHERE, Authorization="Bearer rlk_demo_1") == 401


async def test_on_a_health_port_whoever_reaches_it_reads_it() -> None:
    assert await answered(among_clients=False, client=ELSEWHERE) == 200


@pytest.mark.parametrize("among_clients", [True, False])
async def test_with_a_token_it_is_shown_to_who_has_it_and_to_nobody_else(among_clients: bool) -> None:
    for wrong in (
        {},
        {"Authorization": "Bearer t0"},
        {"Authorization": "Basic t1"},
        {"Authorization": "Bearer t11"},
    ):
        assert await answered(token="t1", among_clients=among_clients, **wrong) == 401
    right = {"Authorization": "Bearer t1", "X_Forwarded_For": "10.9.9.9"}
    assert await answered(token="t1", among_clients=among_clients, client=ELSEWHERE, **right) == 200
