//! The parameters of a route's path and query.

use std::fmt;

use regex_lite::Regex;
use serde_json::{Value as Json, json};
use toml::Spanned;
use toml::de::DeValue;

use crate::config::containers::{NamedTable, list};
use crate::config::key::{self, keys};
use crate::config::kinds::{
    Integer, ParsedText, STRING, choice, integer, integer_of, optional, quoted, report, text,
};
use crate::config::problem::{FileSpan, Path};
use crate::route::{Parameter, parameter_names};
use crate::validate::ParameterType;

/// 2^53 - 1: the largest integer that JSON numbers hold exactly everywhere.
const MOST_INTEGER: u64 = (1 << 53) - 1;

/// The type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) enum Type {
    Hex64,
    Block,
    Ticker,
    Integer,
    Enumeration,
    Text,
}

const TYPES: [(&str, Type); 6] = [
    ("hex64", Type::Hex64),
    ("block", Type::Block),
    ("ticker", Type::Ticker),
    ("integer", Type::Integer),
    ("enum", Type::Enumeration),
    ("string", Type::Text),
];

/// A regular expression, as it is written and compiled with anchors.
#[derive(Clone, Debug)]
pub(in crate::config) struct Pattern {
    text: Box<str>,
    regex: Regex,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

const PATTERN: ParsedText<Pattern> = text("a regular expression", "", |text| {
    let regex = Regex::new(&format!("^(?:{text})$"));
    Ok(Pattern {
        text: text.into(),
        regex: regex.map_err(|error| error.to_string())?,
    })
});

const NUMBER: Integer<u64> = integer(0..=MOST_INTEGER);

/// The default of a parameter: a number, or a string as it would be in a query.
#[derive(Clone, Debug)]
pub(in crate::config) enum DefaultValue {
    Number(u64),
    Text(String),
}

struct AnyDefault;

impl key::Kind for AnyDefault {
    type Value = DefaultValue;

    fn allowed(&self) -> String {
        "a string, or a whole number for type = \"integer\"".to_owned()
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<DefaultValue> {
        let text = value.get_ref().as_str().map(str::to_owned);
        let number = || integer_of(value.get_ref()).map(DefaultValue::Number);
        let read = text.map(DefaultValue::Text).or_else(number);
        read.or_else(|| report(path, value, &self.allowed()))
    }

    fn print(&self, value: &DefaultValue) -> Option<String> {
        Some(match value {
            DefaultValue::Number(number) => number.to_string(),
            DefaultValue::Text(text) => quoted(text),
        })
    }

    fn schema(&self) -> Json {
        json!({"anyOf": [{"type": "string"}, NUMBER.schema()]})
    }
}

keys! {
    /// What a parameter may be.
    pub(in crate::config) struct ParameterKeys {
        /// "hex64": 64 hexadecimal digits, in lower case at the upstream. "block": a
        /// height (at most 10 digits, within u32, leading zeros removed), or a hash: hex64
        /// with at least chain.hash_zeros leading zeros. "ticker": 1 to 100 characters of
        /// UTF-8 (those beyond U+FFFF count twice), percent-encoded once, in lower case
        /// over ASCII; a semicolon is part of it and is sent as %3B. "integer": digits
        /// only. "enum": one of `values`. "string": a text.
        kind ("type"): Type = choice(&TYPES) => Type::Text, required();
        /// A description for /openapi.json.
        description: Option<String> = optional(STRING) => None;
        /// In a query: the value when the parameter is not there.
        default: Option<DefaultValue> = optional(AnyDefault) => None;
        /// The smallest integer.
        min: u64 = NUMBER => 0, only_with("type", &["integer"]);
        /// The largest integer.
        max: u64 = NUMBER => MOST_INTEGER, only_with("type", &["integer"]);
        /// The values of an enum; at least one.
        values: Vec<String> = list(STRING) => Vec::new(), only_with("type", &["enum"]);
        /// The fewest characters of a string.
        min_length: usize = integer(0..=4096) => 1, only_with("type", &["string"]);
        /// The most characters of a string.
        max_length: usize = integer(0..=4096) => 100, only_with("type", &["string"]);
        /// A regular expression that matches the whole string.
        pattern: Option<Pattern> = optional(PATTERN) => None, only_with("type", &["string"]);
    }
}

/// A declared parameter. `parameter` is `None` when something is wrong with it,
/// which has been reported.
pub(super) struct Declared {
    pub(super) name: String,
    at: FileSpan,
    pub(super) parameter: Option<Parameter>,
}

/// Makes the parameters of a path or of a query.
pub(super) fn declared(
    tables: &[NamedTable<ParameterKeys>],
    path: &Path<'_>,
    hash_zeros: u8,
) -> Vec<Declared> {
    let each = tables.iter().map(|table| Declared {
        name: table.name.clone(),
        at: table.at.clone(),
        parameter: parameter(table, &path.key(&table.name), hash_zeros),
    });
    each.collect()
}

fn parameter(
    table: &NamedTable<ParameterKeys>,
    path: &Path<'_>,
    hash_zeros: u8,
) -> Option<Parameter> {
    let (name, at, keys) = (&table.name, &table.at, &table.keys);
    let is_name = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    if !is_name || name.is_empty() {
        let allowed = "is not a name for a parameter; allowed are letters, digits, _, - and .";
        path.problem(at, allowed);
    }
    if table.is_wrong || !keys.kind.is_set() || keys.kind.is_wrong {
        return None;
    }
    let kind = match *keys.kind {
        Type::Hex64 => ParameterType::Hex64,
        Type::Block => ParameterType::Block { zeros: hash_zeros },
        Type::Ticker => ParameterType::Ticker,
        Type::Integer => {
            let (min, max) = (*keys.min, *keys.max);
            if min > max && !keys.min.is_wrong && !keys.max.is_wrong {
                let at = keys.min.at_or(keys.max.at_or(at));
                let message = format!("is {min}, and max is {max}; min is at most max");
                path.key("min").problem(at, message);
                return None;
            }
            ParameterType::Integer { min, max }
        }
        Type::Enumeration => {
            if keys.values.is_empty() && !keys.values.is_wrong {
                let at = keys.values.at_or(at);
                path.key("values")
                    .problem(at, "must list at least one value");
            }
            let values = keys.values.iter().map(|value| value.as_str().into());
            ParameterType::Enumeration(values.collect())
        }
        Type::Text => ParameterType::Text {
            min: *keys.min_length,
            max: *keys.max_length,
            pattern: keys
                .pattern
                .value
                .clone()
                .map(|pattern| (pattern.text, pattern.regex)),
        },
    };
    let is_wrong = [keys.min.is_wrong, keys.max.is_wrong, keys.values.is_wrong];
    let default = match is_wrong.contains(&true) || keys.pattern.is_wrong {
        true => None,
        false => default(keys, name, &kind, path, at),
    };
    Some(Parameter {
        name: name.as_str().into(),
        kind,
        default,
        description: keys.description.value.clone().map(Into::into),
    })
}

/// The canonical form of a default, which must be valid.
fn default(
    keys: &ParameterKeys,
    name: &str,
    kind: &ParameterType,
    path: &Path<'_>,
    at: &FileSpan,
) -> Option<Box<str>> {
    let path = path.key("default");
    let at = keys.default.at_or(at);
    let raw = match (keys.default.value.as_ref()?, kind) {
        (DefaultValue::Number(number), ParameterType::Integer { .. }) => number.to_string(),
        (DefaultValue::Text(text), ParameterType::Integer { .. }) => {
            let allowed = key::Kind::allowed(&NUMBER);
            path.wrong(at, &quoted(text), &format!("allowed is {allowed}"));
            return None;
        }
        (DefaultValue::Number(number), _) => {
            path.wrong(at, &number.to_string(), "allowed is a string");
            return None;
        }
        (DefaultValue::Text(text), _) => text.clone(),
    };
    let mut canonical = Vec::new();
    match kind.write_canonical(name, &raw, true, &mut canonical) {
        Ok(()) => String::from_utf8(canonical).ok().map(Into::into),
        Err(invalid) => {
            path.problem(at, format!("is not valid: {invalid}"));
            None
        }
    }
}

/// The path's parameters in its order; each must be declared, and no other.
pub(super) fn ordered(
    route: &Path<'_>,
    template: &str,
    at: &FileSpan,
    mut declared: Vec<Declared>,
    params_wrong: bool,
) -> Option<Vec<Parameter>> {
    let path = route.key("path");
    let names = match parameter_names(template) {
        Ok(names) => names,
        Err(error) => {
            path.problem(at, format!("is \"{template}\"; {error}"));
            return None;
        }
    };
    let mut params = Vec::new();
    for (number, name) in names.iter().enumerate() {
        if names[..number].contains(name) {
            path.problem(at, format!("has {{{name}}} twice"));
            return None;
        }
        match declared.iter().position(|known| known.name == *name) {
            Some(found) => params.extend(declared.remove(found).parameter),
            None if params_wrong => {}
            None => path.problem(
                at,
                format!("has {{{name}}}, and params.{name} is missing, which says what it may be"),
            ),
        }
    }
    for unknown in &declared {
        let message = format!("is not in the path, which has no {{{}}}", unknown.name);
        route
            .key("params")
            .key(&unknown.name)
            .problem(&unknown.at, message);
    }
    (params.len() == names.len()).then_some(params)
}
