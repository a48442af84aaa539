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
    let named = keys.map(|key| (key.name.to_owned(), property(key)));
    let old = declared.keys.iter().filter_map(old_property);
    let properties: Map<_, _> = named.chain(old).collect();
    let conditions: Vec<_> = declared.keys.iter().flat_map(conditions).collect();
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

/// The old name of a key.
fn old_property(key: &DeclaredKey) -> Option<(String, Json)> {
    let mut schema = key.schema.clone();
    schema["description"] = format!("The old name of {}.", key.name).into();
    schema["deprecated"] = true.into();
    Some((key.old_name?.to_owned(), schema))
}

/// That a key is absent unless another has some of its values, and does not come by
/// both of its names.
fn conditions(key: &DeclaredKey) -> impl Iterator<Item = Json> {
    let only_with = key.only_with.map(|(other, values)| {
        let values = values.iter().map(|text| value(text).unwrap_or(json!(text)));
        let values: Vec<_> = values.collect();
        json!({
            "if": {"not": {"properties": {other: {"enum": values}}, "required": [other]}},
            "then": {"properties": {key.name: false}},
        })
    });
    let once = key
        .old_name
        .map(|old| json!({"not": {"required": [key.name, old]}}));
    only_with.into_iter().chain(once)
}
