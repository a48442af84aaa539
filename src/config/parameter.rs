//! The parameters of a route's path and query.

use regex_lite::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::route;
use crate::validate::ParameterType;

/// The most characters of a string.
const MAX_LENGTH: usize = 255;

/// What a parameter may be.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ParameterTable {
    /// "hex64": 64 hexadecimal digits, in lower case at the upstream. "block": a height (at most
    /// 10 digits, within u32, leading zeros removed), or a hash: hex64 with at least
    /// eight leading zeros. "ticker": 1 to 100 characters of UTF-8 (those beyond
    /// U+FFFF count twice), percent-encoded once, in lower case over ASCII; a semicolon is part
    /// of it and is sent as %3B. "integer": digits only. "enum": one of `values`. "string": a
    /// text of 1 to 255 characters.
    r#type: Type,
    /// A description for /openapi.json.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// In a query: the value when the parameter is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default: Option<DefaultValue>,
    /// The smallest integer, 0 if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min: Option<u64>,
    /// The largest integer, at most 2^53 - 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max: Option<u64>,
    /// The values of an enum; at least one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    values: Option<Vec<String>>,
    /// A regular expression that matches the whole string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pattern: Option<String>,
}

/// The largest integer: what a double represents exactly.
const MOST_INTEGER: u64 = (1 << 53) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Type {
    Hex64,
    Block,
    Ticker,
    Integer,
    Enum,
    String,
}

/// A default: a text, or a number.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(untagged, expecting = "allowed is a string or a whole number")]
#[schemars(inline)]
enum DefaultValue {
    Number(u64),
    Text(String),
}

impl ParameterTable {
    /// The parameter. A problem begins with a dot and a key, or with a colon.
    pub(super) fn parameter(&self, name: &str) -> Result<route::Parameter, String> {
        let is_name_byte = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
        if name.is_empty() || !name.bytes().all(is_name_byte) {
            return Err(": a parameter's name has letters, digits, _, - and .".to_owned());
        }
        let kind = self.kind()?;
        let raw = self.default.as_ref().map(|default| match default {
            DefaultValue::Number(number) => number.to_string(),
            DefaultValue::Text(text) => text.clone(),
        });
        let canonical = |raw: String| {
            let mut canonical = Vec::new();
            let written = kind.write_canonical(name, &raw, true, &mut canonical);
            written.map_err(|invalid| format!(".default: {invalid}"))?;
            let text = String::from_utf8(canonical);
            text.map_err(|_not_text| ".default is no text".to_owned())
        };
        Ok(route::Parameter {
            name: name.into(),
            default: raw.map(canonical).transpose()?.map(Into::into),
            kind,
            description: self.description.as_deref().map(Into::into),
        })
    }

    fn kind(&self) -> Result<ParameterType, String> {
        for (key, is_set, of, name) in [
            ("min", self.min.is_some(), Type::Integer, "integer"),
            ("max", self.max.is_some(), Type::Integer, "integer"),
            ("values", self.values.is_some(), Type::Enum, "enum"),
            ("pattern", self.pattern.is_some(), Type::String, "string"),
        ] {
            if is_set && self.r#type != of {
                return Err(format!(".{key} goes with type = \"{name}\""));
            }
        }
        Ok(match self.r#type {
            Type::Hex64 => ParameterType::Hex64,
            Type::Block => ParameterType::Block,
            Type::Ticker => ParameterType::Ticker,
            Type::Integer => {
                let min = self.min.unwrap_or(0);
                let max = self.max.unwrap_or(MOST_INTEGER);
                if min > max || max > MOST_INTEGER {
                    return Err(format!(
                        ".min is {min}, and max is {max}: min is at most max, and max at most {MOST_INTEGER}"
                    ));
                }
                ParameterType::Integer { min, max }
            }
            Type::Enum => {
                let values = self.values.iter().flatten();
                let values: Vec<Box<str>> = values.map(|value| value.as_str().into()).collect();
                if values.is_empty() {
                    return Err(".values must list at least one value".to_owned());
                }
                ParameterType::Enumeration(values.into())
            }
            Type::String => {
                let regex = |text: &String| {
                    let regex = Regex::new(&format!("^(?:{text})$"));
                    let regex = regex.map_err(|why| format!(".pattern is {text:?}: {why}"))?;
                    Ok::<_, String>((text.as_str().into(), regex))
                };
                ParameterType::Text {
                    min: 1,
                    max: MAX_LENGTH,
                    pattern: self.pattern.as_ref().map(regex).transpose()?,
                }
            }
        })
    }
}
