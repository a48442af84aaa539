//! proxy.toml as JSON Schema 2020-12, made from the declared tables. Editors check
//! and complete the file with it.

use serde_json::{Map, Value as Json, json};

use super::file::File;
use super::key::{DeclaredKey, DeclaredTable, KeyTable};

/// The schema of the whole file.
pub fn schema() -> Json {
    let mut whole = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "proxy.toml: the configuration of ordgate",
    });
    if let (Some(whole), Json::Object(root)) = (whole.as_object_mut(), table(File::table())) {
        whole.extend(root);
    }
    whole
}

/// The schema of a declared table.
pub(super) fn table(declared: &DeclaredTable) -> Json {
    let keys = declared.keys.iter();
    let properties: Map<_, _> = keys
        .map(|key| (key.name.to_owned(), property(key)))
        .collect();
    let conditions: Vec<_> = declared.keys.iter().filter_map(condition).collect();
    let mut schema = json!({
        "type": "object",
        "description": declared.about.join("\n\n"),
        "properties": properties,
        "additionalProperties": false,
    });
    if !conditions.is_empty() {
        schema["allOf"] = conditions.into();
    }
    let required = declared.keys.iter().filter(|key| key.is_required);
    let required: Vec<_> = required.map(|key| key.name).collect();
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

fn property(key: &DeclaredKey) -> Json {
    let mut schema = key.schema.clone();
    if !key.about.is_empty() {
        schema["description"] = key.about.join("\n\n").into();
    }
    if let Some(default) = key.default.as_deref().and_then(value) {
        schema["default"] = default;
    }
    if let Some(example) = key.example.and_then(value) {
        schema["examples"] = json!([example]);
    }
    schema
}

/// A value of TOML as JSON.
fn value(text: &str) -> Option<Json> {
    let table: toml::Table = format!("value = {text}").parse().ok()?;
    serde_json::to_value(table.get("value")?).ok()
}

/// That a key is absent unless another has some of its values.
fn condition(key: &DeclaredKey) -> Option<Json> {
    let (other, values) = key.only_with?;
    let values = values.iter().map(|text| value(text).unwrap_or(json!(text)));
    let values: Vec<_> = values.collect();
    Some(json!({
        "if": {"not": {"properties": {other: {"enum": values}}, "required": [other]}},
        "then": {"properties": {key.name: false}},
    }))
}
