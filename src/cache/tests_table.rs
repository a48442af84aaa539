//! Tables of tests as text: one case a line, columns between bars, and a heading.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

/// The rows of a table.
pub(super) fn rows<const COLUMNS: usize>(
    table: &'static str,
) -> impl Iterator<Item = [&'static str; COLUMNS]> {
    let lines = table.lines().filter(|line| !line.trim().is_empty());
    lines.skip(1).map(|line| {
        let columns: Vec<_> = line.split('|').map(str::trim).collect();
        columns.try_into().unwrap_or_else(|_| panic!("{line}"))
    })
}

/// Fields that a table writes as `name: value & name: value`. `value` turns the text
/// of a value into the value.
pub(super) fn fields_by(text: &str, value: impl Fn(&str) -> HeaderValue) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for field in text.split(" & ").filter(|field| !field.is_empty()) {
        let (name, text) = field.split_once(':').unwrap_or_else(|| panic!("{field}"));
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        fields.append(name, value(text.trim()));
    }
    fields
}

/// Fields that a table writes as `name: value & name: value`.
pub(super) fn fields(text: &str) -> HeaderMap {
    fields_by(text, |text| {
        HeaderValue::from_bytes(text.as_bytes()).unwrap()
    })
}
