//! The JSON Schema accepts what the reader accepts, and rejects the types and bounds
//! that it rejects.

use regex_lite::Regex;
use serde_json::{Value as Json, json};

use super::problems;
use crate::config::{Config, SHIPPED, schema};
use crate::upstream::ProviderKeys;

/// Whether a value fits a schema, for the keywords that ordgate's has. Others are a
/// panic.
fn fits(value: &Json, schema: &Json) -> bool {
    let Json::Object(keywords) = schema else {
        return *schema != json!(false);
    };
    let object = value.as_object();
    keywords.iter().all(|(keyword, rule)| match &**keyword {
        "$schema" | "title" | "description" | "default" | "examples" | "then" | "deprecated" => {
            true
        }
        "type" => match rule.as_str().unwrap() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "number" => value.is_number(),
            "integer" => value.is_i64() || value.is_u64(),
            other => panic!("{other}"),
        },
        "enum" => rule.as_array().unwrap().contains(value),
        "const" => rule == value,
        "minimum" => value.as_f64().is_none_or(|n| n >= rule.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|n| n <= rule.as_f64().unwrap()),
        "pattern" => {
            let regex = Regex::new(rule.as_str().unwrap()).unwrap();
            value.as_str().is_none_or(|text| regex.is_match(text))
        }
        "anyOf" => rule
            .as_array()
            .unwrap()
            .iter()
            .any(|rule| fits(value, rule)),
        "allOf" => rule
            .as_array()
            .unwrap()
            .iter()
            .all(|rule| fits(value, rule)),
        "not" => !fits(value, rule),
        "if" => !fits(value, rule) || fits(value, &keywords["then"]),
        "items" => {
            let mut items = value.as_array().into_iter().flatten();
            items.all(|item| fits(item, rule))
        }
        "required" => {
            let mut names = rule.as_array().unwrap().iter();
            names.all(|name| object.is_none_or(|of| of.contains_key(name.as_str().unwrap())))
        }
        "properties" => {
            let mut members = object.into_iter().flatten();
            members.all(|(name, value)| rule.get(name).is_none_or(|rule| fits(value, rule)))
        }
        "propertyNames" => {
            let mut names = object.into_iter().flatten().map(|(name, _)| json!(name));
            names.all(|name| fits(&name, rule))
        }
        "additionalProperties" => {
            let known = keywords.get("properties").and_then(Json::as_object);
            let mut members = object.into_iter().flatten();
            members.all(|(name, value)| {
                known.is_some_and(|known| known.contains_key(name)) || fits(value, rule)
            })
        }
        other => panic!("the test does not know the keyword {other}"),
    })
}

fn json_of(text: &str) -> Json {
    let table: toml::Table = text
        .parse()
        .unwrap_or_else(|error| panic!("{text}\n{error}"));
    serde_json::to_value(table).unwrap()
}

#[test]
fn the_schema_accepts_what_is_shipped() {
    let schema = schema();
    let bench = |text: &str| {
        let text = text
            .replace("@PORT@", "8080")
            .replace("@ORIGIN_PORT@", "3000");
        text.replace("@DIR@", "/tmp")
    };
    let none = ProviderKeys::default();
    let printed = Config::shipped().unwrap().print(&none).unwrap();
    for text in [
        String::new(),
        SHIPPED.to_owned(),
        printed,
        bench(include_str!("../../../benches/peers.toml")),
        bench(include_str!("../../../benches/peers-chain.toml")),
        bench(include_str!("../../../benches/peers-respect.toml")),
        include_str!("../../../deploy/examples/plain-cache.toml").to_owned(),
        include_str!("../../../deploy/examples/self-hosted.toml").to_owned(),
        include_str!("../../../deploy/examples/sidecar.toml").to_owned(),
        "server.listen = [\"127.0.0.1:80\", \"[::1]:80\", \"[fe80::1%2]:80\", \"unix:/run/a b.sock\"]".to_owned(),
        "log.level = \"info,ordgate::access=Debug,hyper=off\"".to_owned(),
        "log.level = \"WARN\"".to_owned(),
        "upstreams.runes.url = [\"http://a.example\", \"http://b.example\"]".to_owned(),
    ] {
        assert_eq!(problems(&text), [""; 0], "{text}");
        assert!(fits(&json_of(&text), &schema), "{text}");
    }
}
