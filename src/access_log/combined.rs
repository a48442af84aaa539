//! Lines in Apache's combined format, for programs that read it.

use std::fmt::Write;
use std::time::SystemTime;

use http::header::{REFERER, USER_AGENT};
use http::{HeaderName, HeaderValue};

use super::{LogEntry, shown};
use crate::identify::Client;

/// The line of a request, with its line feed. The client's address stands first, without
/// the length of an IPv6 network; for a client with a token, the connection's address,
/// and the token's name as the user.
pub(super) fn line(entry: &LogEntry<'_>) -> String {
    let address = match entry.client.client {
        Client::Token(_) => entry.peer.to_string(),
        address @ (Client::V4(_) | Client::V6(_)) => address.to_string(),
    };
    let request = match entry.target() {
        Some(target) => {
            let query = entry.query().map(|query| format!("?{query}"));
            let request = format!(
                "{} {target}{} {:?}",
                entry.method(),
                query.unwrap_or_default(),
                entry.version,
            );
            escaped(&request)
        }
        None => "-".to_owned(),
    };
    let bytes = Some(entry.bytes).filter(|bytes| *bytes > 0);
    format!(
        "{} - {} [{}] \"{}\" {} {} \"{}\" \"{}\"\n",
        address.trim_end_matches("/64"),
        entry.client.name.map_or_else(|| "-".to_owned(), escaped),
        date(entry.at),
        request,
        entry.status,
        bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string()),
        field(entry, &REFERER),
        field(entry, &USER_AGENT),
    )
}

fn field(entry: &LogEntry<'_>, name: &HeaderName) -> String {
    let value = entry.fields.get(name).map(HeaderValue::as_bytes);
    value.map_or_else(
        || "-".to_owned(),
        |value| escaped(&shown(&String::from_utf8_lossy(value))),
    )
}

/// A time as Apache writes it, in UTC: `10/Oct/2000:13:55:36 +0000`.
fn date(at: SystemTime) -> String {
    // `Tue, 10 Oct 2000 13:55:36 GMT`.
    let text = httpdate::fmt_http_date(at);
    let mut words = text.split(' ').skip(1);
    let mut word = || words.next().unwrap_or("-");
    format!("{}/{}/{}:{} +0000", word(), word(), word(), word())
}

/// A text within a pair of quotes: as nginx, with `\xHH` for bytes that are not printable
/// ASCII.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => escaped.extend(['\\', char::from(byte)]),
            b' '..=b'~' => escaped.push(char::from(byte)),
            // Writing to a string does not fail.
            _ => drop(write!(escaped, "\\x{byte:02x}")),
        }
    }
    escaped
}
