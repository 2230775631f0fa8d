//! Validation of manifests with the schemas of their kinds, as strict as `kubectl apply --validate=strict`: unknown
//! fields are problems. `schemas/README.md` has the origin of the schemas.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Returns the problems of the manifest of a custom resource; empty if it is valid.
pub fn problems(manifest: &Value) -> Vec<String> {
    let file = match manifest["kind"].as_str() {
        Some("JobSet") => include_str!("schemas/jobset.json"),
        Some("TrainJob") => include_str!("schemas/trainjob.json"),
        Some("TrainingRuntime") => include_str!("schemas/trainingruntime.json"),
        Some("TFJob") => include_str!("schemas/tfjob.json"),
        other => return vec![format!("there is no schema of {other:?}")],
    };
    let file: Value = serde_json::from_str(file).unwrap();
    let mut problems = Vec::new();
    if manifest["apiVersion"] != file["apiVersion"] {
        problems.push(format!("apiVersion is {}, not {}", manifest["apiVersion"], file["apiVersion"]));
    }
    check(&file["schema"], manifest, "", &mut problems);
    problems
}

/// Deserializes a value into a type of Kubernetes' API. Returns an error if the type lacks a field of the
/// value.
pub fn round_trip<T: DeserializeOwned + Serialize>(value: &Value) -> Result<T, String> {
    let typed: T = serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
    let again = serde_json::to_value(&typed).unwrap();
    if again == *value { Ok(typed) } else { Err(format!("{value} is read as {again}")) }
}

fn check(schema: &Value, value: &Value, path: &str, problems: &mut Vec<String>) {
    let mut wrong = |what: String| problems.push(format!("{path}: {what}: {value}"));
    if schema["pod"] == true {
        if let Err(error) = round_trip::<PodTemplateSpec>(value) {
            wrong(error);
        }
        return;
    }
    assert!(schema.get("pattern").is_none(), "{path}: the test cannot check a pattern");
    let is_either = schema["x-kubernetes-int-or-string"] == true;
    let is_valid = match schema["type"].as_str() {
        None => is_either && (value.is_i64() || value.is_string()),
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("boolean") => value.is_boolean(),
        Some(other) => panic!("{path}: the test does not know the type {other}"),
    };
    if !is_valid {
        wrong(format!("is no {}", schema["type"]));
    }
    if let Some(allowed) = schema["enum"].as_array().filter(|allowed| !allowed.contains(value)) {
        wrong(format!("is none of {allowed:?}"));
    }
    let length = match value {
        Value::String(text) => Some(("Length", text.chars().count())),
        Value::Array(items) => Some(("Items", items.len())),
        Value::Object(fields) => Some(("Properties", fields.len())),
        _ => None,
    };
    let bounds = length.into_iter().map(|(of, n)| (of.to_owned(), n as i64));
    let number = value.as_i64().map(|number| ("imum".to_owned(), number));
    for (of, found) in bounds.chain(number) {
        if schema[format!("min{of}")].as_i64().is_some_and(|min| found < min)
            || schema[format!("max{of}")].as_i64().is_some_and(|max| found > max)
        {
            wrong(format!("is out of bounds ({of})"));
        }
    }
    check_object(schema, value, path, problems);
    check_array(schema, value, path, problems);
}

fn check_object(schema: &Value, value: &Value, path: &str, problems: &mut Vec<String>) {
    let Some(fields) = value.as_object() else { return };
    for name in schema["required"].as_array().into_iter().flatten() {
        if !fields.contains_key(name.as_str().unwrap()) {
            problems.push(format!("{path}: {name} is missing"));
        }
    }
    // The metadata, and others whose fields the schema does not say.
    let is_open = schema.get("properties").is_none() && schema.get("additionalProperties").is_none();
    for (name, field) in fields {
        let known = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
        let path = format!("{path}.{name}");
        match known {
            Some(schema) => check(schema, field, &path, problems),
            None if is_open => {}
            None => problems.push(format!("{path}: there is no such field")),
        }
    }
}

fn check_array(schema: &Value, value: &Value, path: &str, problems: &mut Vec<String>) {
    let Some(items) = value.as_array() else { return };
    for (place, item) in items.iter().enumerate() {
        check(&schema["items"], item, &format!("{path}[{place}]"), problems);
    }
    let keys: Vec<_> = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().collect();
    let key = |item: &Value| keys.iter().map(|key| item[key.as_str().unwrap()].clone()).collect::<Vec<_>>();
    for (place, item) in items.iter().enumerate().filter(|_| !keys.is_empty()) {
        if items[..place].iter().any(|other| key(other) == key(item)) {
            problems.push(format!("{path}[{place}]: has the keys of another item"));
        }
    }
}
