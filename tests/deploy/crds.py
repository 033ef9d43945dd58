"""Schemas of the custom resources in our manifests, as far as we use them.

The real schemas come with their operators. These are stricter: a field that is not listed is
refused.
"""

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string", "minLength": 1}
DURATION: Schema = {"type": "string", "pattern": r"^(0|([0-9]+(ms|[smhdwy]))+)$"}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}


def record(needed: dict[str, Schema], allowed: dict[str, Schema] | None = None) -> Schema:
    """Return the schema of an object with these fields and no others."""
    return {
        "type": "object",
        "required": list(needed),
        "properties": needed | (allowed or {}),
        "additionalProperties": False,
    }


def listed(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def texts() -> Schema:
    return {"type": "object", "additionalProperties": {"type": "string"}}


def document(api: str, kind: str, spec: Schema) -> Schema:
    metadata = record(
        {"name": TEXT}, {"namespace": TEXT, "labels": texts(), "annotations": texts()}
    )
    return record(
        {"apiVersion": {"const": api}, "kind": {"const": kind}, "metadata": metadata, "spec": spec}
    )


KEY = record({"name": TEXT, "key": TEXT})
TLS = record({"ca": record({"secret": KEY}), "cert": record({"secret": KEY}), "keySecret": KEY},
             {"serverName": TEXT})  # fmt: skip
ENDPOINT = record(
    {"port": TEXT},
    {
        "path": TEXT, "interval": DURATION, "scheme": {"enum": ["http", "https"]},
        "tlsConfig": TLS,
        "relabelings": listed(record({"sourceLabels": listed(TEXT), "targetLabel": TEXT})),
    },
)  # fmt: skip
ALERT = record({"alert": TEXT, "expr": TEXT, "labels": texts(), "annotations": texts()},
               {"for": DURATION, "keep_firing_for": DURATION})  # fmt: skip
RECORDING = record({"record": TEXT, "expr": TEXT}, {"labels": texts()})
GROUP = record({"name": TEXT, "rules": listed({"oneOf": [ALERT, RECORDING]})},
               {"interval": DURATION})  # fmt: skip
LISTENER = record(
    {"name": TEXT, "protocol": {"const": "TLS"}, "port": PORT},
    {"hostname": TEXT, "tls": record({"mode": {"const": "Passthrough"}})},
)

SCHEMAS: dict[tuple[str, str], Schema] = {
    (schema["properties"]["apiVersion"]["const"], schema["properties"]["kind"]["const"]): schema
    for schema in (
        document(
            "monitoring.coreos.com/v1",
            "ServiceMonitor",
            record(
                {
                    "selector": record({"matchLabels": texts()}),
                    "endpoints": listed(ENDPOINT),
                }
            ),
        ),
        document(
            "monitoring.coreos.com/v1", "PrometheusRule", record({"groups": listed(GROUP)})
        ),
        document(
            "gateway.networking.k8s.io/v1",
            "Gateway",
            record({"gatewayClassName": TEXT, "listeners": listed(LISTENER)}),
        ),
        document(
            "gateway.networking.k8s.io/v1",
            "TLSRoute",
            record(
                {
                    "hostnames": listed(TEXT),
                    "parentRefs": listed(record({"name": TEXT}, {"sectionName": TEXT})),
                    "rules": listed(
                        record({"backendRefs": listed(record({"name": TEXT, "port": PORT}))})
                    ),
                }
            ),
        ),
    )
}  # fmt: skip
