from runlane.hosting.nats_server import Cluster, render_config
from runlane_contracts.access import broker_users
from runlane_contracts.streams import Layout

LAYOUT = Layout()


def rendered(**changes):
    options = {"layout": LAYOUT, "listen": "127.0.0.1:4222", "store_dir": "/data", "passwords": None}
    return render_config(**(options | changes))


def test_every_acknowledged_message_is_on_disk():
    assert "sync_interval: always" in rendered()


def test_without_passwords_there_are_no_users():
    assert "authorization" not in rendered()


def test_the_observer_may_publish_nothing():
    text = rendered(passwords={user.name: "secret" for user in broker_users(LAYOUT)})
    observer = text.split('user: "observer"')[1]
    assert '"publish": {"deny": [">"]}' in observer


def test_a_variable_of_the_environment_stays_unquoted():
    text = rendered(passwords={user.name: f"$PASSWORD_{user.name.upper()}" for user in broker_users(LAYOUT)})
    assert "password: $PASSWORD_WORKER," in text


def test_a_cluster_names_its_routes():
    text = rendered(cluster=Cluster(name="c", listen="0.0.0.0:6222", routes=("nats://a:6222", "nats://b:6222")))
    assert 'routes: ["nats://a:6222", "nats://b:6222"]' in text
