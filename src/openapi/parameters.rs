//! Parameters of requests, whose schemas accept what `validate` accepts.

use serde_json::{Value, json};

use crate::route::Parameter;
use crate::validate::{HASH_DIGITS, HASH_ZEROS, ParameterType, TICKER_CHARACTERS};

/// The heights, in at most ten digits: 0 to 4294967295.
const HEIGHT: &str = "[0-9]{1,9}|[0-3][0-9]{9}|4[01][0-9]{8}|42[0-8][0-9]{7}|429[0-3][0-9]{6}|4294[0-8][0-9]{5}|42949[0-5][0-9]{4}|429496[0-6][0-9]{3}|4294967[01][0-9]{2}|42949672[0-8][0-9]|429496729[0-5]";

/// A text without control characters and without a dot segment: `.` or `..` before
/// a slash, a backslash, a semicolon or the end. For the dialect of JSON Schema
/// (ECMA-262).
const TEXT: &str = r"^(?!(?:.*[/\\])?\.{1,2}(?:[/\\;]|$))[^\u0000-\u001f\u007f-\u009f]*$";

/// A transaction of the sandbox.
const TRANSACTION: &str = "a6da4bd3d7c77c5d9bd6951683ce4f8a626fd6b4f0402bf6ae0b9d6231015aa0";

/// A parameter of the path or the query. Only what is required has an example: another one
/// would change the answer.
pub(super) fn parameter(parameter: &Parameter, location: &str) -> Value {
    let is_required = location == "path";
    let mut value = json!({
        "name": parameter.name,
        "in": location,
        "required": is_required,
        "schema": schema(parameter),
    });
    if let Some(example) = example(&parameter.kind).filter(|_| is_required) {
        value["example"] = example;
    }
    let own = parameter.description.as_deref();
    let texts: Vec<_> = own.into_iter().chain(words(&parameter.kind)).collect();
    if !texts.is_empty() {
        value["description"] = texts.join(": ").into();
    }
    value
}

/// What a pattern means, for those who read the page.
fn words(kind: &ParameterType) -> Option<&str> {
    match kind {
        ParameterType::Hex64 => Some("64 hexadecimal digits"),
        ParameterType::Block => Some("a height or a hash"),
        ParameterType::Text { pattern, .. } => Some(&pattern.as_ref()?.0),
        ParameterType::Ticker | ParameterType::Integer { .. } | ParameterType::Enumeration(_) => {
            None
        }
    }
}

fn schema(parameter: &Parameter) -> Value {
    let mut schema = match &parameter.kind {
        ParameterType::Hex64 => json!({ "type": "string", "pattern": "^[0-9a-fA-F]{64}$" }),
        ParameterType::Block => {
            let others = HASH_DIGITS - HASH_ZEROS;
            let hash = format!("0{{{HASH_ZEROS}}}[0-9a-fA-F]{{{others}}}");
            json!({ "type": "string", "pattern": format!("^(?:{HEIGHT}|{hash})$") })
        }
        ParameterType::Ticker => {
            json!({ "type": "string", "minLength": 1, "maxLength": TICKER_CHARACTERS, "pattern": TEXT })
        }
        ParameterType::Integer { min, max } => {
            json!({ "type": "integer", "minimum": min, "maximum": max })
        }
        ParameterType::Enumeration(values) => json!({ "type": "string", "enum": values }),
        ParameterType::Text { min, max, pattern } => {
            let mut text =
                json!({ "type": "string", "minLength": min, "maxLength": max, "pattern": TEXT });
            if let Some((pattern, _)) = pattern {
                text["allOf"] = json!([{ "pattern": format!("^(?:{pattern})$") }]);
            }
            text
        }
    };
    if let Some(default) = &parameter.default {
        schema["default"] = number_or_text(&parameter.kind, default);
    }
    schema
}

/// An integer as a number, all else as text.
fn number_or_text(kind: &ParameterType, value: &str) -> Value {
    match (kind, value.parse::<u64>()) {
        (ParameterType::Integer { .. }, Ok(number)) => json!(number),
        _ => json!(value),
    }
}

/// A value that is valid, and has content in the sandbox where it names something; none for
/// a text with a pattern, for which none can be made.
fn example(kind: &ParameterType) -> Option<Value> {
    Some(match kind {
        ParameterType::Hex64 => json!(TRANSACTION),
        ParameterType::Block => json!("840000"),
        ParameterType::Ticker => json!("ordi"),
        ParameterType::Integer { min, max } => json!(10.clamp(*min, *max)),
        ParameterType::Enumeration(values) => json!(values.first()),
        ParameterType::Text {
            pattern: Some(_), ..
        } => return None,
        ParameterType::Text { min, .. } => json!("x".repeat((*min).clamp(1, 100))),
    })
}

#[cfg(test)]
mod tests {
    use regex_lite::Regex;

    use super::*;

    #[test]
    fn the_pattern_of_a_block_is_that_of_the_validator() {
        let hash = |zeros: usize| format!("{}{}", "0".repeat(zeros), "a".repeat(64 - zeros));
        let texts = "0 7 007 840000 999999999 0999999999 3999999999 4199999999 4289999999 \
                     4293999999 4294899999 4294959999 4294966999 4294967199 4294967289 \
                     4294967290 4294967295 4294967296 4294967300 4294970000 4300000000 \
                     5000000000 9999999999 00000000000 -1 +1 1.0 x";
        let parameter = Parameter {
            name: "block".into(),
            kind: ParameterType::Block,
            default: None,
            description: None,
        };
        let schema = schema(&parameter);
        let pattern = Regex::new(schema["pattern"].as_str().unwrap()).unwrap();
        let hashes = [0, 7, 8, 9, 64].map(hash);
        let hashes = hashes
            .iter()
            .flat_map(|hash| [hash.clone(), hash.to_uppercase()]);
        let digits = ["1".repeat(64), "1".repeat(63), "0".repeat(65)];
        let texts = texts.split(' ').chain(["", "1 "]).map(str::to_owned);
        for text in texts.chain(hashes).chain(digits) {
            let kind = &parameter.kind;
            let valid = kind.write_canonical("block", &text, false, &mut Vec::new());
            assert_eq!(pattern.is_match(&text), valid.is_ok(), "{text}");
        }
    }
}
