"""The description of the provider for Airflow: entry point `apache_airflow_provider`."""

from typing import Any

_HOOK = "lakehead.connectors.airflow.hooks"
_OPTIONAL_TEXT = {"type": ["string", "null"]}
_PROTOCOLS = ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
_MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

CONNECTION_FIELDS: dict[str, dict[str, Any]] = {
    "path": {
        "label": "Cluster's object store",
        "description": "s3://bucket/prefix?region=…, file:/folder: what lakehead start has as "
        "--path",
        "schema": {"type": "string"},
    },
    "storage": {
        "label": "Settings of the store",
        "description": 'JSON of the standard AWS_… variables: {"AWS_REGION": "eu-west-1"}. Left '
        "out: what the worker's environment has",
        "schema": {"type": ["string", "null"], "format": "password"},
    },
    "registry_url": {
        "label": "Schema registry",
        "description": "http://host:8081",
        "schema": _OPTIONAL_TEXT,
    },
    "registry_user": {
        "label": "User of the schema registry",
        "description": "Left out: the registry requires no login",
        "schema": _OPTIONAL_TEXT,
    },
    "registry_password": {
        "label": "Password of the schema registry",
        "description": "Sent by HTTP Basic",
        "schema": {"type": ["string", "null"], "format": "password"},
    },
    "security_protocol": {
        "label": "Security protocol of the brokers",
        "description": "Left out: SASL_SSL with a login, PLAINTEXT without",
        "schema": {**_OPTIONAL_TEXT, "enum": [*_PROTOCOLS, None]},
    },
    "sasl_mechanism": {
        "label": "SASL mechanism",
        "description": "Left out: SCRAM-SHA-512",
        "schema": {**_OPTIONAL_TEXT, "enum": [*_MECHANISMS, None]},
    },
    "ssl_ca_location": {
        "label": "CA certificates of brokers and registry",
        "description": "A file in PEM on the workers. Left out: the system's",
        "schema": _OPTIONAL_TEXT,
    },
}
"""The fields of the connection form in addition to host, port, login and password. Kept in
`extra`.
"""


def get_provider_info() -> dict[str, Any]:
    """Return the provider's info, by Airflow's `provider_info.schema.json`. Called at each start of
    Airflow's processes, so it imports nothing.
    """
    return {
        "package-name": "lakehead",
        "name": "Lakehead",
        "description": "Streams in object storage, their upkeep, and the Delta tables of them.",
        "integrations": [
            {
                "integration-name": "Lakehead",
                "external-doc-url": "https://kafka.apache.org/documentation/",
                "tags": ["software"],
            }
        ],
        "connection-types": [
            {
                "connection-type": "lakehead",
                "hook-class-name": f"{_HOOK}.LakeheadHook",
                "hook-name": "Lakehead",
                "conn-fields": CONNECTION_FIELDS,
                "ui-field-behaviour": {
                    "hidden-fields": ["schema"],
                    "relabeling": {
                        "host": "Brokers",
                        "login": "SASL user",
                        "password": "SASL password",
                    },
                    "placeholders": {
                        "host": "broker-1:9092,broker-2:9092 (jobs need none)",
                        "path": "s3://bucket/prefix?region=eu-west-1",
                    },
                },
            }
        ],
        "hooks": [_of_ours(_HOOK)],
        "operators": [
            _of_ours(
                "lakehead.connectors.airflow.operators.complete_hours",
                "lakehead.connectors.airflow.operators.connect",
                "lakehead.connectors.airflow.operators.job",
                "lakehead.connectors.airflow.operators.mapped",
                "lakehead.connectors.airflow.operators.tables",
            )
        ],
        "sensors": [_of_ours("lakehead.connectors.airflow.sensors")],
        "triggers": [_of_ours("lakehead.connectors.airflow.triggers")],
        "asset-uris": [
            {
                "schemes": ["lakehead"],
                "handler": "lakehead.connectors.airflow.assets.sanitize_uri",
                "to_openlineage_converter": (
                    "lakehead.connectors.airflow.lineage.asset_to_openlineage"
                ),
            }
        ],
    }


def _of_ours(*modules: str) -> dict[str, Any]:
    return {"integration-name": "Lakehead", "python-modules": list(modules)}
