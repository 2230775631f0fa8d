"""Cuts a CustomResourceDefinition to what a manifest of `distribute launch --print` is validated with.

    python3 cut.py jobset.x-k8s.io_jobsets.yaml > jobset.json

Descriptions and the status are left out. A pod is replaced by `{"pod": true}`: the test compares it with the types of
Kubernetes' API. The rest is unchanged, with all fields that are not used.
"""

import json
import sys

import yaml


def cut(schema):
    properties = schema.get("properties", {})
    if "containers" in properties.get("spec", {}).get("properties", {}):
        return {"pod": True}
    result = {}
    for key, value in schema.items():
        if key == "properties":
            result[key] = {name: cut(of) for name, of in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            result[key] = cut(value)
        elif key != "description":
            result[key] = value
    return result


definition = yaml.safe_load(open(sys.argv[1]))["spec"]
(version,) = [version for version in definition["versions"] if version["storage"]]
schema = version["schema"]["openAPIV3Schema"]
schema["properties"].pop("status", None)
whole = {
    "apiVersion": f"{definition['group']}/{version['name']}",
    "kind": definition["names"]["kind"],
    "schema": cut(schema),
}
json.dump(whole, sys.stdout, sort_keys=True)
print()
