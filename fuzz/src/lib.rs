//! What the targets share: fields out of a fuzzer's bytes.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The lines of an input; corpora stay readable that way.
pub fn lines(input: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    input.split(|byte| *byte == b'\n')
}

/// A field value as hyper would hand it over: blanks around it are gone.
pub fn value(bytes: &[u8]) -> Option<HeaderValue> {
    HeaderValue::from_bytes(bytes.trim_ascii()).ok()
}

/// One field with these lines, without those that no field value can be.
pub fn field<'l>(name: &HeaderName, lines: impl IntoIterator<Item = &'l [u8]>) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for value in lines.into_iter().filter_map(value) {
        fields.append(name, value);
    }
    fields
}

/// Fields that stand there as `name: value`.
pub fn fields<'l>(lines: impl IntoIterator<Item = &'l [u8]>) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for line in lines {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (Some(name), Some(text)) = (parts.next(), parts.next()) else {
            continue;
        };
        if let (Ok(name), Some(value)) = (HeaderName::from_bytes(name), value(text)) {
            fields.append(name, value);
        }
    }
    fields
}

/// The same with each ASCII letter in its other case.
pub fn other_case(bytes: &[u8]) -> Vec<u8> {
    let flip = |byte: &u8| match byte.is_ascii_alphabetic() {
        true => byte ^ 0x20,
        false => *byte,
    };
    bytes.iter().map(flip).collect()
}

/// Whether each quoted-string in a list closes; and the list's members, parted
/// at the commas outside them (RFC 9110 §5.6.4).
pub fn members(list: &[u8]) -> Option<Vec<&[u8]>> {
    let (mut members, mut from) = (Vec::new(), 0);
    let (mut quoted, mut at) = (false, 0);
    while at < list.len() {
        match list[at] {
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            b',' if !quoted => {
                members.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    members.push(&list[from..]);
    (!quoted).then_some(members)
}
