//! The values of Host that the admin listener accepts.
//!
//! A web page's host name may resolve to this listener's address; then the page
//! could read the responses (DNS rebinding). Its requests have the page's name in
//! Host. Therefore names must be configured. Addresses are accepted, because the
//! name of a page is not another's address.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::header::HOST;
use http::uri::Authority;
use http::{Request, StatusCode, Version};

/// Why a request's host is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Foreign {
    /// Host is missing, repeated or malformed.
    Malformed,
    /// It is a name that is not configured.
    Name(String),
}

impl Foreign {
    /// The status code of the response.
    pub(super) const fn status(&self) -> StatusCode {
        match self {
            Self::Malformed => StatusCode::BAD_REQUEST,
            Self::Name(_) => StatusCode::MISDIRECTED_REQUEST,
        }
    }

    /// What was received, and what to do.
    pub(super) fn detail(&self) -> String {
        match self {
            Self::Malformed => {
                "A request must have one Host field, of the form host or host:port".to_owned()
            }
            Self::Name(name) => format!(
                "The admin listener does not accept the host name {name:?}: use its address or localhost, or add the name to admin.hosts"
            ),
        }
    }
}

/// Checks a request's host: that of its target where it has one, else Host.
pub(super) fn check<B>(request: &Request<B>, names: &[String]) -> Result<(), Foreign> {
    let mut lines = request.headers().get_all(HOST).iter();
    let host = match (lines.next(), lines.next()) {
        (Some(host), None) => host.to_str().map_err(|_not_ascii| Foreign::Malformed)?,
        // HTTP/1.0 does not require Host, and browsers always send it.
        (None, _) if request.version() == Version::HTTP_10 => return Ok(()),
        (None, _) | (Some(_), Some(_)) => return Err(Foreign::Malformed),
    };
    match request.uri().authority() {
        Some(authority) => is_own(authority, names),
        None if host.is_empty() => Err(Foreign::Name(String::new())),
        None => {
            let authority = host.parse::<Authority>();
            is_own(&authority.map_err(|_malformed| Foreign::Malformed)?, names)
        }
    }
}

fn is_own(authority: &Authority, names: &[String]) -> Result<(), Foreign> {
    let host = authority.host();
    // Only a port may follow the host, and nothing may precede it.
    let port = authority.as_str().strip_prefix(host);
    let port = port.map(|rest| rest.strip_prefix(':').unwrap_or(rest));
    if !port.is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err(Foreign::Malformed);
    }
    let is_v6 = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .is_some_and(|host| host.parse::<Ipv6Addr>().is_ok());
    if is_v6 || host.parse::<Ipv4Addr>().is_ok() {
        return Ok(());
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let name = name.to_ascii_lowercase();
    // RFC 6761 §6.3: these names always resolve to the local machine.
    let is_local = name == "localhost" || name.ends_with(".localhost");
    match is_local || names.iter().any(|own| own.eq_ignore_ascii_case(&name)) {
        true => Ok(()),
        false => Err(Foreign::Name(name)),
    }
}

/// Whether a text may be a name in `admin.hosts`: a host without a port.
pub(crate) fn is_name(text: &str) -> bool {
    let parsed = text.parse::<Authority>();
    parsed.is_ok_and(|authority| authority.host() == text && !text.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(target: &str, hosts: &[&str], version: Version) -> Result<(), Foreign> {
        let mut request = Request::builder().uri(target).version(version);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        check(&request.body(()).unwrap(), &["own.example".to_owned()])
    }

    #[test]
    fn names_must_be_configured_and_addresses_are_accepted() {
        let name = |name: &str| Err(Foreign::Name(name.to_owned()));
        let rows: &[(&str, &[&str], Result<(), Foreign>)] = &[
            ("/", &["127.0.0.1"], Ok(())),
            ("/", &["192.0.2.1:9090"], Ok(())),
            ("/", &["[2001:db8::1]:9090"], Ok(())),
            ("/", &["localhost:1"], Ok(())),
            ("/", &["a.localhost."], Ok(())),
            ("/", &["OWN.example:9090"], Ok(())),
            ("/", &["x.own.example"], name("x.own.example")),
            ("/", &["rebound.example:9090"], name("rebound.example")),
            (
                "/",
                &["127.0.0.1.rebound.example"],
                name("127.0.0.1.rebound.example"),
            ),
            ("/", &["[::1].rebound.example"], Err(Foreign::Malformed)),
            ("/", &[""], name("")),
            ("/", &["a b"], Err(Foreign::Malformed)),
            ("/", &["localhost@rebound.example"], Err(Foreign::Malformed)),
            ("/", &["localhost", "localhost"], Err(Foreign::Malformed)),
            ("/", &[], Err(Foreign::Malformed)),
            ("http://localhost/", &["rebound.example"], Ok(())),
            (
                "http://rebound.example/",
                &["localhost"],
                name("rebound.example"),
            ),
        ];
        for (target, hosts, expected) in rows {
            let found = checked(target, hosts, Version::HTTP_11);
            assert_eq!(&found, expected, "{target} {hosts:?}");
        }
        assert_eq!(checked("/", &[], Version::HTTP_10), Ok(()));
    }

    #[test]
    fn a_configured_name_is_a_host_without_a_port() {
        for text in ["ordgate", "ordgate.internal", "a-b.example"] {
            assert!(is_name(text), "{text}");
        }
        for text in ["", "a:1", "a.", "http://a", "a/b", "u@a", "a b"] {
            assert!(!is_name(text), "{text}");
        }
    }
}
