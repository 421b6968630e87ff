import pytest
from pydantic import ValidationError

from runlane.hosting.api_keys import ApiKeyAuthorizer
from runlane.hosting.settings import AccessSettings, CommonSettings
from runlane_contracts.streams import GIB


def test_every_setting_is_described():
    for settings in (CommonSettings, AccessSettings):
        assert all(field.description for field in settings.model_fields.values())


def test_the_environment_decides(monkeypatch):
    monkeypatch.setenv("RUNLANE_LOG_STREAMS", "4")
    monkeypatch.setenv("RUNLANE_STREAM_MAX_BYTES", str(GIB))
    monkeypatch.setenv("RUNLANE_STREAM_REPLICAS", "3")
    layout = CommonSettings().layout
    assert (layout.log_streams, layout.max_bytes, layout.replicas) == (4, GIB, 3)


def test_a_setting_out_of_bounds_is_refused_at_the_start(monkeypatch):
    monkeypatch.setenv("RUNLANE_STREAM_REPLICAS", "2")
    with pytest.raises(ValidationError):
        CommonSettings()


def test_settings_do_not_change():
    with pytest.raises(ValidationError):
        CommonSettings().log_streams = 2


def test_a_password_is_not_shown():
    settings = CommonSettings(nats_password="open sesame")
    assert "sesame" not in repr(settings)
    assert settings.broker_password == "open sesame"


def test_a_service_connects_under_its_own_name_once_there_is_a_password():
    assert CommonSettings().broker_user("projector") is None
    assert CommonSettings(nats_password="x").broker_user("projector") == "projector"
    assert CommonSettings(nats_user="special").broker_user("projector") == "special"


async def test_keys_of_the_settings_sign_and_let_in(monkeypatch):
    monkeypatch.setenv("RUNLANE_CURSOR_KEYS", f"k2:{'ab' * 16},k1:{'cd' * 32}")
    monkeypatch.setenv("RUNLANE_API_KEYS", "demo:one,other:two")
    settings = AccessSettings()
    keys = settings.signing_keys()
    assert (keys.current, set(keys.keys)) == ("k2", {"k1", "k2"})
    principal = await ApiKeyAuthorizer.of_settings(settings).authenticate("two")
    assert principal is not None
    assert principal.tenant_id == "other"


def test_without_cursor_keys_nothing_starts():
    with pytest.raises(ValueError, match="RUNLANE_CURSOR_KEYS"):
        AccessSettings().signing_keys()
