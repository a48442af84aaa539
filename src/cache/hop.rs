//! Hop-by-hop fields, and `Via` (RFC 9110 §7.6).
//!
//! Applied to every message in both directions, after the rules that need the
//! whole message and before it is forwarded or stored. Framing is hyper's.

use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Version};

use super::list::plain;

/// Fields that an intermediary never forwards, listed in `Connection` or not
/// (RFC 9110 §7.6.1); and those between a client and the next proxy (§11.7): a gateway
/// requests no proxy credentials and does not forward those for another proxy.
const ALWAYS: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    HeaderName::from_static("proxy-authentication-info"),
    header::PROXY_AUTHORIZATION,
];

/// Fields that `Connection` cannot remove: they frame, route or control the
/// message, and no connection option may have their name (RFC 9110 §7.6.1).
const KEPT: [HeaderName; 3] = [header::CACHE_CONTROL, header::CONTENT_LENGTH, header::HOST];

/// Removes all hop-by-hop fields.
pub(crate) fn strip(headers: &mut HeaderMap) {
    let lines = headers.get_all(header::CONNECTION).iter();
    let options = lines.flat_map(|line| plain(line.as_bytes()));
    let options = options.filter_map(|option| HeaderName::from_bytes(option).ok());
    let options: Vec<_> = options.filter(|option| !KEPT.contains(option)).collect();
    for name in ALWAYS.iter().chain(&options) {
        headers.remove(name);
    }
}

/// Adds this hop to `Via` (RFC 9110 §7.6.3), with the version of the received
/// message and a pseudonym.
pub(crate) fn add_via(headers: &mut HeaderMap, received: Version, pseudonym: &str) {
    let version = match received {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    };
    if let Ok(value) = HeaderValue::try_from(format!("{version} {pseudonym}")) {
        headers.append(header::VIA, value);
    }
}

/// Whether the message has already passed this hop (RFC 9110 §7.6.3).
#[must_use]
pub(crate) fn has_passed(headers: &HeaderMap, pseudonym: &str) -> bool {
    let lines = headers.get_all(header::VIA).iter();
    let mut hops = lines.flat_map(|line| plain(line.as_bytes()));
    hops.any(|hop| {
        let words = hop.split(u8::is_ascii_whitespace);
        let by = words.filter(|word| !word.is_empty()).nth(1);
        by.is_some_and(|by| by.eq_ignore_ascii_case(pseudonym.as_bytes()))
    })
}

/// Removes the fields that do not pass.
pub(crate) fn keep(fields: &mut HeaderMap, passes: impl Fn(&HeaderName) -> bool) {
    let stopped: Vec<_> = fields
        .keys()
        .filter(|name| !passes(name))
        .cloned()
        .collect();
    for name in stopped {
        fields.remove(name);
    }
}

#[cfg(test)]
mod tests {
    //! Sections are of RFC 9110 where no other is named.

    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn hop_by_hop_fields_are_removed() {
        let table: &[(&str, &str, bool, &str)] = &[
            ("connection", "a, B", false, "§7.6.1"),
            ("a", "1", false, "§7.6.1, listed"),
            ("b", "1", false, "§7.6.1, listed in another case"),
            ("c", "1", true, "§7.6.1"),
            ("keep-alive", "5", false, "§7.6.1"),
            ("proxy-connection", "close", false, "§7.6.1"),
            ("te", "trailers", false, "§7.6.1"),
            ("transfer-encoding", "chunked", false, "§7.6.1"),
            ("upgrade", "h2c", false, "§7.6.1"),
            ("proxy-authenticate", "Basic", false, "§11.7.1"),
            ("proxy-authorization", "Basic x", false, "§11.7.2"),
            ("proxy-authentication-info", "x", false, "§11.7.3"),
            ("cache-control", "no-store", true, "§7.6.1, never an option"),
            ("content-length", "5", true, "§8.6, framing"),
            ("host", "a", true, "§7.2, routing"),
            ("trailer", "x", true, "§6.6.2, end-to-end"),
        ];
        let mut message = headers(&[("connection", "cache-control,content-length, host, c d, \"")]);
        for (name, value, ..) in table {
            message.append(*name, HeaderValue::from_static(value));
        }
        strip(&mut message);
        for (name, _, stays, section) in table {
            assert_eq!(message.contains_key(*name), *stays, "{name}: {section}");
        }
    }

    #[test]
    fn via_gets_one_entry_for_each_hop() {
        let mut message = headers(&[("via", "1.0 fred, HTTP/1.1 p.example.net (x y)")]);
        assert!(!has_passed(&message, "ordgate"));
        assert!(has_passed(&message, "P.example.net"), "§7.6.3");
        add_via(&mut message, Version::HTTP_11, "ordgate");
        add_via(&mut message, Version::HTTP_2, "other");
        let lines: Vec<_> = message.get_all(header::VIA).iter().skip(1).collect();
        assert_eq!(lines, ["1.1 ordgate", "2 other"], "§7.6.3");
        assert!(has_passed(&message, "ordgate"), "§7.6.3");
    }
}
