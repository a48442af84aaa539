//! Lines in Apache's combined format, for programs that read it.

use std::fmt::Write;
use std::time::SystemTime;

use http::{HeaderValue, Version};

use super::{Field, LogEntry, shown};
use crate::identify::Client;
use crate::log_writer::is_hidden;

/// The line of a request, with its line feed. The client's address stands first, without
/// the length of an IPv6 network; for a client with a token, the connection's address,
/// and the token's name as the user. Of the fields, only those of the query count.
pub(super) fn line(entry: &LogEntry<'_>, fields: &[Field]) -> String {
    let mut line = String::with_capacity(256);
    // Writing to a string does not fail.
    let _ = write_line(&mut line, entry, fields);
    line.push('\n');
    line
}

fn write_line(line: &mut String, entry: &LogEntry<'_>, fields: &[Field]) -> std::fmt::Result {
    match entry.client.client {
        Client::Token(_) => write!(line, "{}", entry.peer)?,
        address @ (Client::V4(_) | Client::V6(_)) => {
            let address = address.to_string();
            line.push_str(address.trim_end_matches("/64"));
        }
    }
    line.push_str(" - ");
    match entry.client.name {
        Some(name) => escaped(line, name),
        None => line.push('-'),
    }
    write!(line, " [{}] \"", date(entry.at))?;
    match entry.path() {
        Some(path) => {
            escaped(line, &entry.method());
            line.push(' ');
            escaped(line, &path);
            if let Some(query) = entry.query(fields) {
                line.push('?');
                escaped(line, &query);
            }
            line.push_str(match entry.version {
                Version::HTTP_10 => " HTTP/1.0",
                Version::HTTP_2 => " HTTP/2.0",
                // There are no others on the listeners.
                _ => " HTTP/1.1",
            });
        }
        None => match entry.refused_line() {
            // It is escaped already.
            Some(refused) => line.push_str(&refused),
            None => line.push('-'),
        },
    }
    write!(line, "\" {} ", entry.status)?;
    match entry.bytes {
        0 => line.push('-'),
        bytes => write!(line, "{bytes}")?,
    }
    for field in [&entry.head.referer, &entry.head.user_agent] {
        line.push_str(" \"");
        match field.as_ref().map(HeaderValue::as_bytes) {
            Some(value) => escaped(line, &shown(&String::from_utf8_lossy(value))),
            None => line.push('-'),
        }
        line.push('"');
    }
    Ok(())
}

/// A time as Apache writes it, in UTC: `10/Oct/2000:13:55:36 +0000`.
fn date(at: SystemTime) -> String {
    // `Tue, 10 Oct 2000 13:55:36 GMT`.
    let text = httpdate::fmt_http_date(at);
    let mut words = text.split(' ').skip(1);
    let mut word = || words.next().unwrap_or("-");
    format!("{}/{}/{}:{} +0000", word(), word(), word(), word())
}

/// Adds a text without characters that a terminal does not show as themselves, so that it is part of one line and of one pair
/// of quotes.
pub(super) fn escaped(line: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '"' | '\\' => line.extend(['\\', c]),
            c if is_hidden(c) => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(line, "\\x{byte:02x}");
                }
            }
            c => line.push(c),
        }
    }
}
