//! The base URLs of upstreams: what is one, and how messages show what is none.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::Uri;
use rustls::pki_types::DnsName;
use serde::{Deserializer, de};

use crate::units::Texts;

/// Reads the URLs of an upstream in proxy.toml.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Uri>, D::Error> {
    let texts: Vec<String> = Texts::deserialize(from)?;
    let urls = texts.iter().map(|text| base_url(text));
    urls.map(|url| url.map_err(de::Error::custom)).collect()
}

/// Reads an upstream's base URL.
///
/// # Errors
/// What is allowed. A user, a password and a query are not shown.
pub fn base_url(text: &str) -> Result<Uri, String> {
    let url = text.parse::<Uri>().ok();
    let url = url.filter(|url| is_base(url) && !text.contains('#'));
    url.ok_or_else(|| {
        format!(
            "{:?} came; allowed is an http or https URL of a DNS name or an IP address, without user, query and fragment, such as \"https://api.example\"",
            without_secrets(text)
        )
    })
}

fn is_base(url: &Uri) -> bool {
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let host = url.host().unwrap_or_default();
    let port = authority
        .strip_prefix(host)
        .map(|rest| rest.strip_prefix(':'));
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
    matches!(url.scheme_str(), Some("http" | "https"))
        && is_host(host)
        && port.is_some_and(|port| port.is_none_or(is_port))
        && url.query().is_none()
}

/// Whether a host can be connected to, or may resolve: an address, in brackets if it is one
/// of IPv6, or a DNS name. TLS knows no zones of IPv6 addresses.
fn is_host(text: &str) -> bool {
    let bracketed = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    match bracketed {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => text.parse::<Ipv4Addr>().is_ok() || DnsName::try_from(text).is_ok(),
    }
}

/// A URL, or what came in place of one, as messages show it: without a query, and without all
/// that comes before the last `@`, which may have a password.
fn without_secrets(text: &str) -> String {
    let text = text.split('?').next().unwrap_or(text);
    match text.rsplit_once('@') {
        Some((_, rest)) => format!("[redacted]@{rest}"),
        None => text.to_owned(),
    }
}
