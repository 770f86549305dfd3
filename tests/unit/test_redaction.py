"""Secrets are hidden in texts, and nothing else is."""

import pytest

from lakehead.broker.diagnosis.redaction import Redaction, secret_variables

NOTHING_KNOWN = Redaction([])


@pytest.mark.parametrize(
    "text",
    [
        "https://ann:s3cret-word@registry:8081/subjects",
        "s3://bucket/prefix?endpoint=http://h&secret_access_key=s3cret-word&region=eu",
        "https://h/x?X-Amz-Signature=s3cret-word",
        "Authorization: Bearer s3cret-word",
        'ScramLoginModule required username="ann" password="s3cret-word";',
        r'{"note": "password=\"s3cret-word\""}',
        '{"api_key": "s3cret-word"}',
        "'token': 's3cret-word'",
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str) -> None:
    found = NOTHING_KNOWN.hidden(text.encode()).decode()
    assert "s3cret-word" not in found
    assert "[hidden]" in found
    assert NOTHING_KNOWN.hidden(found.encode()).decode() == found


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/prefix?region=eu-central-1&endpoint=http://localhost:7070",
        "event=node_ready address=127.0.0.1:9092 key=data/12/34",
        '{"ssl.keystore.location": "/etc/lakehead/node.pem", "node": 3}',
        "mail ann@example.org about topic orders?",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert NOTHING_KNOWN.hidden(text.encode()).decode() == text


def test_known_values_are_hidden_wherever_they_are() -> None:
    environment = {
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7",
        "DB_PASSWORD": "correct horse",
        "GITHUB_TOKEN": "ghp_123456",
        "LAKEHEAD_ENCRYPTION_KEY_FILE": "/etc/keys.json",
        "PATH": "/usr/bin",
    }
    secrets = secret_variables(environment)
    assert secrets == ["wJalrXUtnFEMI/K7", "correct horse", "ghp_123456"]
    redaction = Redaction([*secrets, "line one of a key\nline two of a key", "abc"])
    found = redaction.hidden(b"abc wJalrXUtnFEMI/K7, correct horse; line two of a key, ghp_123456")
    assert found == b"abc [hidden], [hidden]; [hidden], [hidden]"
