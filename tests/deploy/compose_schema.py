"""Schemas of compose.yaml and Grafana's provisioning, as far as we use them.

As strict as crds.py: a field that is not listed is refused.
"""

from deploy.crds import DURATION, TEXT, Schema, listed, record, texts

BOOL: Schema = {"type": "boolean"}
TEXTS = listed(TEXT)
CONDITION: Schema = {"enum": ["service_healthy", "service_completed_successfully"]}
SERVICE = record(
    {"image": TEXT},
    {
        "build": record({"context": TEXT, "target": TEXT}),
        "cap_drop": TEXTS,
        "command": TEXTS,
        "configs": listed(record({"source": TEXT, "target": TEXT})),
        "depends_on": {
            "type": "object",
            "additionalProperties": record({"condition": CONDITION}),
        },
        "entrypoint": TEXTS,
        "environment": texts(),
        "healthcheck": record({"disable": BOOL}),
        "ports": TEXTS,
        "read_only": BOOL,
        "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
        "security_opt": TEXTS,
        "stop_grace_period": DURATION,
        "tmpfs": TEXTS,
        "volumes": TEXTS,
    },
)


def named(schema: Schema) -> Schema:
    return {"type": "object", "additionalProperties": schema, "minProperties": 1}


COMPOSE: Schema = record(
    {
        "name": TEXT,
        "services": named(SERVICE),
        "volumes": named({"type": "null"}),
        "configs": named(record({"content": TEXT})),
    }
) | {"patternProperties": {"^x-": {}}}
PROVIDERS = record(
    {
        "apiVersion": {"const": 1},
        "providers": listed(
            record(
                {"name": TEXT, "type": {"const": "file"}, "options": record({"path": TEXT})},
                {"folder": TEXT, "allowUiUpdates": BOOL},
            )
        ),
    }
)
DATASOURCES = record(
    {
        "apiVersion": {"const": 1},
        "datasources": listed(
            record(
                {
                    **{"name": TEXT, "uid": TEXT, "url": TEXT},
                    **{"type": {"const": "prometheus"}, "access": {"const": "proxy"}},
                },
                {"isDefault": BOOL, "jsonData": record({"timeInterval": DURATION})},
            )
        ),
    }
)
