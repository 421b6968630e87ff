"""The door: who may open a connection is decided before it is one, so a refusal is an HTTP answer as any other."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from runlane.edge_gateway.websocket import handshake
from runlane.edge_gateway.websocket.commands import CommandGateway, CommandsUnderWay
from runlane.edge_gateway.websocket.methods import Services
from runlane.edge_gateway.websocket.session import Session
from runlane.edge_gateway.websocket.sessions import Sessions
from runlane.hosting.authorizer import PRINCIPAL, Principal
from runlane.hosting.http import OnRefusal, ProblemError, problem_of, problem_response, refused_code
from runlane.hosting.websocket_protocol import EXTENSION, WebSocketProtocol
from runlane_contracts.problems import Code

PATH = "/v1/ws"


class SocketEndpoint:
    """`GET /v1/ws` as plain ASGI, under `hosting.http_server`. `origins`: pages of others that may connect."""

    def __init__(
        self, sessions: Sessions, services: Services, *, origins: frozenset[str], on_refusal: OnRefusal | None = None
    ) -> None:
        self._sessions = sessions
        self._services = services
        self._origins = origins
        self._on_refusal = on_refusal
        self._under_way = CommandsUnderWay()

    async def serve(self, scope: Scope, receive: Receive, send: Send, *, commands: ASGIApp | None) -> None:
        """One connection, or what is wrong with it. `commands`: where commands are handed to."""
        if (await receive())["type"] != "websocket.connect":
            return
        if scope["path"] != PATH:
            await answer_handshake(send, problem_response(Code.NOT_FOUND))
            return
        try:
            principal, bearer = await self._admitted(scope)
        except Exception as exc:  # noqa: BLE001 - a refusal, or a fault of ours: both are answered
            await self._refuse(scope, send, exc)
            return
        protocol = scope["extensions"][EXTENSION]
        if not isinstance(protocol, WebSocketProtocol):
            raise TypeError("needs hosting.http_server")
        await send({"type": "websocket.accept", "subprotocol": handshake.chosen(scope["subprotocols"])})
        limits = self._sessions.limits
        protocol.bound_buffers(high=limits.lanes.previews, low=limits.lanes.low, kernel=limits.lanes.kernel)
        session = Session(
            protocol, receive, principal, bearer,
            services=self._services, commands=CommandGateway(commands, self._under_way), limits=limits,
            jitter=self._sessions.jitter(),
        )  # fmt: skip
        with self._sessions.holding(session):
            await session.run()

    async def shut_down(self) -> None:
        """Tell every connection to come back, and finish the commands that were handed on. Returns in time."""
        await self._sessions.shut_down()
        await self._under_way.drain(self._sessions.limits.goodbye_s)

    async def _admitted(self, scope: Scope) -> tuple[Principal, str]:
        handshake.check_origin(scope["headers"], self._origins)
        handshake.check_address(scope["query_string"])
        bearer = handshake.token_of(scope["headers"], scope["subprotocols"])
        principal = None if bearer is None else await self._services.authorizer.authenticate(bearer)
        if principal is None or bearer is None:
            raise ProblemError(Code.UNAUTHENTICATED, headers={"WWW-Authenticate": "Bearer"})
        scope[PRINCIPAL] = principal
        self._sessions.check(principal.tenant_id)
        return principal, bearer

    async def _refuse(self, scope: Scope, send: Send, exc: Exception) -> None:
        code = refused_code(exc)
        if code is not None and self._on_refusal is not None:
            noted = self._on_refusal({**scope, "method": "GET"}, code)
            if noted is not None:
                await noted.stored()
        await answer_handshake(send, problem_of(exc) or problem_response(Code.INTERNAL))


async def upgrade_needed(_request: Request) -> Response:
    """What a request gets that is none for a WebSocket."""
    return problem_response(
        Code.INVALID_REQUEST, "this is a WebSocket: ask for an upgrade", headers={"Upgrade": "websocket"}
    )  # fmt: skip


async def answer_handshake(send: Send, response: Response) -> None:
    """An HTTP answer instead of a connection."""
    start = {"status": response.status_code, "headers": response.raw_headers}
    await send({"type": "websocket.http.response.start", **start})
    await send({"type": "websocket.http.response.body", "body": bytes(response.body)})
