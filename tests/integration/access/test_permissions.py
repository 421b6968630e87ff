"""Every user against subjects of every kind, on a real server. What is not named here is refused."""

import nats
import pytest

from runlane_contracts.access import broker_users, inbox_prefix
from support.eventually import eventually
from support.nats import SMALL, nats_server

USERS = tuple(user.name for user in broker_users(SMALL))
SERVICES = frozenset(USERS) - {"worker", "operator", "observer", "subscriber", "broker_monitor", "content_reader"}
APPENDERS = frozenset({"command_gateway", "run_supervisor", "worker", "retention"})
LEASES = frozenset({"command_gateway", "run_supervisor", "worker"})
LOG_READERS = frozenset({"command_gateway", "run_supervisor", "redaction_filter", "worker", "retention"})
VIEW_READERS = frozenset({"redaction_filter", "projector", "edge_gateway", "operator", "retention", "content_reader"})

MAY_PUBLISH = {
    "rl.log.00.acme.r1": APPENDERS,
    "rl.view.00.acme.r1": {"redaction_filter"},
    "rl.live.acme.r1": set(),
    "rl.signal.acme.run.created": {"redaction_filter"},
    "rl.preview.view.acme.r1": {"redaction_filter"},
    "rl.preview.raw.acme.r1": {"command_gateway", "worker"},
    "rl.cmd.00.acme.r1": {"command_gateway"},
    "rl.outcome.acme.cmd_1": {"run_supervisor"},
    "rl.work.acme.default": {"run_supervisor"},
    "rl.audit.acme.command": {"audit_sink"},
    "rl.intake.acme.edge_gateway": {"edge_gateway"},
    "rl.intake.acme.command_gateway": {"command_gateway"},
    "rl.intake._platform.broker": {"audit_sink", "broker_log"},
    "rl.intake.acme.operator": {"operator"},
    "rl.dead.projector.acme": {"projector"},
    "rl.dead.run_supervisor.acme": {"run_supervisor"},
    "rl.svc.projector.rebuild": {"operator"},
    "$KV.RL_LEASES.acme.r1": LEASES,
    "$KV.RL_LEDGER.acme.cmd_1": {"command_gateway", "run_supervisor"},
    "$KV.RL_TIMERS.acme.r1": {"run_supervisor"},
    "$KV.RL_TENANTS.acme": {"operator"},
    "$KV.RL_ROLLUP.head": {"metrics_aggregator"},
    "$JS.API.INFO": set(USERS) - {"observer", "subscriber", "broker_monitor", "content_reader"},
    "$JS.API.STREAM.LIST": {"operator", "metrics_aggregator"},
    "$JS.API.STREAM.INFO.RL_DEAD": {"operator", "metrics_aggregator"},
    "$JS.API.CONSUMER.INFO.RL_LOG_0.some": {"operator", "run_supervisor", "worker", "metrics_aggregator"},
    "$JS.API.CONSUMER.LIST.RL_SIGNAL": {"operator", "metrics_aggregator"},
    "$JS.API.CONSUMER.LIST.RL_LOG_0": {"operator", "retention"},
    "$JS.API.DIRECT.GET.RL_SIGNAL": {"operator", "redaction_filter"},
    "$JS.API.CONSUMER.MSG.NEXT.RL_SIGNAL.metrics-aggregator-v1": {"metrics_aggregator"},
    "$JS.ACK.RL_SIGNAL.metrics-aggregator-v1.1.2.3.4.5": {"metrics_aggregator"},
    "$JS.API.STREAM.CREATE.RL_LOG_0": {"operator"},
    "$JS.API.STREAM.UPDATE.RL_LOG_0": {"operator"},
    "$JS.API.STREAM.PURGE.RL_VIEW_0": {"retention"},
    "$JS.API.STREAM.PURGE.RL_LOG_0": {"retention"},
    "$JS.API.STREAM.PURGE.RL_SIGNAL": set(),
    "$JS.API.STREAM.MSG.DELETE.RL_VIEW_0": {"retention"},
    "$JS.API.STREAM.MSG.DELETE.RL_COMMAND": {"retention"},
    "$JS.API.STREAM.MSG.DELETE.RL_AUDIT": set(),
    "$JS.API.STREAM.DELETE.RL_DEAD": {"operator"},
    "$JS.API.STREAM.MSG.GET.RL_LOG_0": set(),
    "$JS.API.STREAM.MSG.DELETE.RL_LOG_0": {"retention"},
    "$JS.API.STREAM.INFO.RL_LOG_0": LOG_READERS | {"edge_gateway", "operator", "audit_sink"},
    "$JS.API.STREAM.INFO.RL_VIEW_0": VIEW_READERS,
    "$JS.API.DIRECT.GET.RL_LOG_0": LOG_READERS | {"audit_sink"},
    "$JS.API.DIRECT.GET.RL_LOG_0.rl.log.00.acme.r1": LOG_READERS | {"audit_sink"},
    "$JS.API.DIRECT.GET.RL_VIEW_0": VIEW_READERS,
    "$JS.API.DIRECT.GET.RL_COMMAND": {"retention"},
    "$JS.API.DIRECT.GET.RL_AUDIT": {"audit_sink", "operator"},
    "$JS.API.STREAM.MSG.GET.RL_AUDIT": {"audit_sink"},
    "$JS.API.STREAM.PURGE.RL_AUDIT": set(),
    "$JS.API.STREAM.DELETE.RL_AUDIT": set(),
    "$JS.API.CONSUMER.MSG.NEXT.RL_LOG_0.audit-sink-log-v1-0": {"audit_sink"},
    "$JS.API.CONSUMER.MSG.NEXT.RL_INTAKE.audit-sink-intake-v1": {"audit_sink"},
    "$JS.ACK.KV_RL_LEDGER.audit-sink-ledger-v1.1.2.3.4.5": {"audit_sink"},
    "$JS.API.DIRECT.GET.KV_RL_LEASES": LEASES | {"redaction_filter", "operator"},
    "$JS.API.DIRECT.GET.KV_RL_TENANTS": {"command_gateway", "worker", "operator"},
    "$JS.API.DIRECT.GET.KV_RL_LEDGER": {"command_gateway", "run_supervisor"},
    "$JS.API.CONSUMER.CREATE.RL_LOG_0.tail1.rl.log.00.acme.r1": {"run_supervisor", "worker", "operator"},
    "$JS.API.CONSUMER.MSG.NEXT.RL_LOG_0.tail1": {"run_supervisor", "worker"},
    "$JS.API.CONSUMER.CREATE.RL_VIEW_0.tail1.rl.view.>": {"projector", "edge_gateway", "operator"},
    "$JS.API.CONSUMER.MSG.NEXT.RL_VIEW_0.tail1": {"projector", "edge_gateway"},
    "$JS.API.CONSUMER.CREATE.RL_LOG_0.redaction-filter-v1-0.rl.log.>": {"redaction_filter", "operator"},
    "$JS.API.CONSUMER.MSG.NEXT.RL_LOG_0.redaction-filter-v1-0": {"redaction_filter"},
    "$JS.API.CONSUMER.DELETE.RL_LOG_0.redaction-filter-v1-0": {"operator"},
    "$JS.API.CONSUMER.RESET.RL_LOG_0.redaction-filter-v1-0": {"redaction_filter", "operator"},
    "$JS.API.CONSUMER.MSG.NEXT.RL_VIEW_0.projector-v1-0": {"projector"},
    "$JS.API.CONSUMER.MSG.NEXT.RL_COMMAND.run-supervisor-v1": {"run_supervisor"},
    "$JS.ACK.RL_LOG_0.redaction-filter-v1-0.1.2.3.4.5": {"redaction_filter"},
    "$JS.ACK.RL_VIEW_0.projector-v1-0.1.2.3.4.5": {"projector"},
    "$JS.ACK.RL_COMMAND.run-supervisor-v1.1.2.3.4.5": {"run_supervisor"},
    "$JS.ACK.RL_WORK.pool-default.1.2.3.4.5": {"worker"},
    "$JS.API.CONSUMER.MSG.NEXT.RL_WORK.pool-default": {"worker"},
    "$JS.API.CONSUMER.CREATE.RL_SIGNAL.subscriber-billing.rl.signal.>": {"operator"},
    "$JS.API.CONSUMER.MSG.NEXT.RL_SIGNAL.subscriber-billing": {"subscriber"},
    "$JS.ACK.RL_SIGNAL.subscriber-billing.1.2.3.4.5": {"subscriber"},
    "$JS.API.DIRECT.GET.RL_WORK": {"command_gateway"},
    "$JS.API.STREAM.MSG.DELETE.RL_WORK": {"command_gateway"},
    "$SYS.REQ.SERVER.PING": set(),
    "$SYS.REQ.SERVER.PING.VARZ": {"broker_monitor"},
    "$SYS.REQ.SERVER.PING.CONNZ": set(),
    "$SRV.PING": set(),
    "_INBOX_operator.x": SERVICES,
    "_INBOX_worker.x": set(),
    "anything.else": set(),
}
"""Who may publish where."""

MAY_SUBSCRIBE = {
    ">": set(),
    "rl.>": set(),
    "rl.log.>": set(),
    "rl.view.>": set(),
    "rl.cmd.>": set(),
    "rl.work.>": set(),
    "rl.audit.>": set(),
    "rl.intake.>": set(),
    "rl.dead.>": set(),
    "rl.live.>": {"edge_gateway", "operator", "observer"},
    "rl.signal.>": {"operator", "observer", "subscriber"},
    "rl.preview.raw.>": {"redaction_filter"},
    "rl.preview.view.>": {"edge_gateway"},
    "rl.outcome.>": {"command_gateway"},
    "rl.svc.projector.rebuild": {"projector"},
    "$KV.RL_LEASES.>": set(),
    "$JS.API.>": set(),
    "$JS.ACK.>": set(),
    "_INBOX.>": set(),
    **{f"{inbox_prefix(user)}.>": {user} for user in USERS},
}
"""Who may listen where."""


@pytest.fixture
async def server():
    async with nats_server(users=True) as one:
        yield one


@pytest.mark.parametrize("user", USERS)
async def test_a_user_publishes_where_it_may_and_nowhere_else(server, user):
    refused: list[str] = []
    client = await _connect(server, user, refused)
    for subject in MAY_PUBLISH:
        await client.publish(subject, b"")
    await client.flush()
    expected = sorted(subject.lower() for subject, users in MAY_PUBLISH.items() if user not in users)
    await eventually(lambda: len(refused) >= len(expected))
    await client.flush()
    assert sorted(_quoted(text) for text in refused) == expected
    await client.close()


@pytest.mark.parametrize("user", USERS)
async def test_a_user_listens_where_it_may_and_nowhere_else(server, user):
    refused: list[str] = []
    client = await _connect(server, user, refused)
    for subject in MAY_SUBSCRIBE:
        await client.subscribe(subject)
    await client.flush()
    expected = sorted(subject.lower() for subject, users in MAY_SUBSCRIBE.items() if user not in users)
    await eventually(lambda: len(refused) >= len(expected))
    assert sorted(_quoted(text) for text in refused) == expected
    await client.close()


async def test_an_observer_with_a_stock_client_hears_signals(server):
    refused: list[str] = []
    observer = await nats.connect(server.url_of("observer"), error_cb=_collector(refused))
    heard = await observer.subscribe("rl.signal.>")
    await observer.flush()
    speaker = await _connect(server, "redaction_filter", refused)
    await speaker.publish("rl.signal.acme.run.created", b"{}")
    await speaker.flush()
    assert (await heard.next_msg(timeout=5)).subject == "rl.signal.acme.run.created"
    assert refused == []
    await observer.close()
    await speaker.close()


async def test_a_wrong_password_is_refused(server):
    client = nats.NATS()
    with pytest.raises(nats.errors.Error, match="Authorization"):
        await client.connect(server.url, user="observer", password="x", allow_reconnect=False, error_cb=_collector([]))
    await client.close()


async def _connect(server, user, refused):
    return await nats.connect(
        server.url_of(user), inbox_prefix=inbox_prefix(user).encode(), error_cb=_collector(refused)
    )


def _collector(refused):
    async def collect(error):
        refused.append(str(error))

    return collect


def _quoted(text: str) -> str:
    """The subject in a violation. nats-py lowers the server's text."""
    return text.split('"')[1].lower()
