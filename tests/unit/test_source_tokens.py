"""Tokens by which an import logs in to its source: of a file, and of a token endpoint."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from lakehead.broker.cli.migration.source_tokens import SourceTokens
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import BrokerUnavailable, RequestRefused, SettingsError
from tests.support.http_places import HttpPlace
from tests.support.token_issuer import unsigned_token

PREFIX = "sasl.oauthbearer."


def tokens_of(url: str, **settings: str) -> SourceTokens:
    named = {PREFIX + name.replace("_", "."): value for name, value in settings.items()}
    return SourceTokens({PREFIX + "token.endpoint.url": url, **named}, SystemClock())


def test_a_token_in_a_file_is_read_again_before_it_expires(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(unsigned_token(exp=1) + "\n")
    tokens = tokens_of(file.as_uri(), extensions="logicalCluster=lkc-1, pool=p")
    assert tokens.callback("") == (
        *(unsigned_token(exp=1), 1, ""),
        {"logicalCluster": "lkc-1", "pool": "p"},
    )
    file.write_text(unsigned_token(exp=9_999_999_999))
    assert tokens.token().value == unsigned_token(exp=9_999_999_999)
    file.unlink()
    assert tokens.token().value == unsigned_token(exp=9_999_999_999)
    with pytest.raises(RequestRefused, match="cannot be read"):
        tokens_of(file.as_uri()).token()


def test_client_credentials_get_a_token_of_the_endpoint() -> None:
    logins = []

    def respond(_: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        logins.append(base64.b64decode(headers["Authorization"].removeprefix("Basic ")))
        return 200, json.dumps({"access_token": "opaque", "expires_in": 3600}).encode()

    with HttpPlace(respond) as place:
        tokens = tokens_of(
            f"{place.url}/token", client_id="me", client_secret="s3cret", scope="all"
        )
        assert tokens.token().value == "opaque"
        assert tokens.token().expires_s > SystemClock().now_ms() / 1000 + 3500
        assert logins == [b"me:s3cret"]  # the second one is the first


def test_a_token_that_cannot_be_had_is_an_error_with_the_reason() -> None:
    with HttpPlace(lambda *_: (401, b"no")) as place:
        with pytest.raises(RequestRefused, match="HTTP status 401"):
            tokens_of(place.url, client_id="me", client_secret="wrong").token()
        url = place.url
    with pytest.raises(BrokerUnavailable, match="gives no token"):
        tokens_of(url, client_id="me", client_secret="s3cret").token()
    with (
        HttpPlace(lambda *_: (200, b"[]")) as place,
        pytest.raises(RequestRefused, match="another response"),
    ):
        tokens_of(place.url, client_id="me", client_secret="s3cret").token()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_endpoint_that_gives_no_token_at_the_moment_is_tried_again_later(status: int) -> None:
    with HttpPlace(lambda *_: (status, b"later")) as place:
        tokens = tokens_of(place.url, client_id="me", client_secret="s3cret")
        with pytest.raises(BrokerUnavailable, match=f"HTTP status {status}"):
            tokens.token()


def test_a_token_whose_time_is_not_a_number_is_valid_for_a_while(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(unsigned_token(exp="tomorrow"))
    found = tokens_of(file.as_uri()).token()
    assert found.expires_s > SystemClock().now_ms() / 1000 + 200


def test_settings_without_a_token_name_what_is_missing() -> None:
    with pytest.raises(SettingsError, match=r"token\.endpoint\.url"):
        SourceTokens({}, SystemClock())
    with pytest.raises(SettingsError, match=r"client\.secret"):
        tokens_of("https://idp/token", client_id="me")
