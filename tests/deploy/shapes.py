"""The shapes of the Prometheus operator's two kinds, of which no schema comes with a package."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
CUSTOM = "monitoring.coreos.com/v1"
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}


def closed(required: list[str], **properties: Any) -> Json:
    """The schema of an object with these keys and no others."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def custom(kind: str, spec: Json) -> Json:
    """The schema of a custom object."""
    return closed(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion={"const": CUSTOM},
        kind={"const": kind},
        metadata=closed(["name", "namespace"], name={"type": "string"}, namespace={"type": "string"}, labels=LABELS),
        spec=spec,
    )


DURATION = {"type": "string", "pattern": r"^(\d+[smhd])+$"}
RULE = closed(
    ["expr"],
    alert={"type": "string"},
    record={"type": "string"},
    expr={"type": "string"},
    **{"for": DURATION},
    labels=LABELS,
    annotations=LABELS,
)
GROUP = closed(
    ["name", "rules"], name={"type": "string"}, interval=DURATION, rules={"type": "array", "items": RULE, "minItems": 1}
)
RELABEL = closed(
    ["action"], action={"enum": ["labeldrop", "labelkeep", "drop", "keep", "replace"]}, regex={"type": "string"}
)
ENDPOINT = closed(
    ["port"],
    port={"type": "string"},
    path={"type": "string"},
    interval=DURATION,
    scrapeTimeout=DURATION,
    relabelings={"type": "array", "items": RELABEL},
)
SHAPES = {
    "PrometheusRule": custom("PrometheusRule", closed(["groups"], groups={"type": "array", "items": GROUP})),
    "ServiceMonitor": custom(
        "ServiceMonitor",
        closed(
            ["selector", "endpoints"],
            selector=closed(["matchLabels"], matchLabels=LABELS),
            endpoints={"type": "array", "items": ENDPOINT, "minItems": 1},
        ),
    ),
}
"""As the Prometheus operator documents them: the keys that these files use, and no others."""
