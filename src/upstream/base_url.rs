//! The base URLs of upstreams: what is one, and how messages show what is none.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use http::Uri;
use rustls::pki_types::DnsName;
use serde::{Deserializer, Serializer};

use crate::units::Texts;

/// How proxy.toml has the URLs of an upstream.
pub(super) struct BaseUrls;

impl BaseUrls {
    pub(super) fn serialize<S: Serializer>(urls: &[Uri], to: S) -> Result<S::Ok, S::Error> {
        Texts::serialize(urls, to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Uri>, D::Error> {
        let urls: Vec<BaseUrl> = Texts::deserialize(from)?;
        Ok(urls.into_iter().map(|url| url.0).collect())
    }
}

/// The URL of a server.
struct BaseUrl(Uri);

impl FromStr for BaseUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        base_url(text).map(Self)
    }
}

/// Reads an upstream's base URL.
///
/// # Errors
/// What is allowed. A user, a password and a query are not shown.
pub fn base_url(text: &str) -> Result<Uri, String> {
    let why = match text.parse::<Uri>() {
        Ok(url) => match wrong_part(text, &url) {
            None => return Ok(url),
            Some(why) => why,
        },
        Err(why) => why.to_string(),
    };
    Err(format!(
        "{:?} came ({why}); allowed is an http or https URL without user, query and fragment, such as \"https://api.example\"",
        without_secrets(text)
    ))
}

/// What a base URL must not have, or lacks.
fn wrong_part(text: &str, url: &Uri) -> Option<String> {
    if !matches!(url.scheme_str(), Some("http" | "https")) {
        return Some("its scheme".to_owned());
    }
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let host = url.host().unwrap_or_default();
    match authority
        .strip_prefix(host)
        .map(|rest| rest.strip_prefix(':'))
    {
        _ if authority.contains('@') => Some("it has a user".to_owned()),
        _ if !is_host(host) => Some(format!(
            "its host, {host}, is neither a DNS name nor an IP address"
        )),
        Some(None) => None,
        Some(Some(port)) if port.parse::<u16>().is_ok_and(|port| port != 0) => None,
        _ => Some("its port".to_owned()),
    }
    .or_else(|| {
        let is_bare = url.query().is_none() && !text.contains('#');
        (!is_bare).then(|| "it has a query or a fragment".to_owned())
    })
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

/// A URL, or what came in place of one, as messages show it: without the user and the
/// password, which end at the last `@`.
fn without_secrets(text: &str) -> String {
    let text = text.split('?').next().unwrap_or(text);
    let Some((before, rest)) = text.rsplit_once('@') else {
        return text.to_owned();
    };
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let scheme = before.split_once("://").map(|(scheme, _)| scheme);
    match scheme.filter(|scheme| scheme.chars().all(is_scheme)) {
        Some(scheme) => format!("{scheme}://[redacted]@{rest}"),
        None => format!("[redacted]@{rest}"),
    }
}
