"""The blocking SDK is made from the async one, and is as new."""

import runlane.client
from runlane.client import sync
from support.sync_client import TARGET, sync_client


def test_it_is_what_the_async_sdk_makes():
    assert TARGET.read_text() == sync_client(), "poe sync-client"


def test_every_name_is_one_of_the_async_sdk_too():
    unnamed = {"Agent", "MessageInProgress", "ReasoningInProgress"}  # the async ones are given, never made
    assert set(sync.__all__) - unnamed <= set(runlane.client.__all__)
