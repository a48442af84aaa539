//! The values of Host that the admin listener accepts.
//!
//! A web page's host name may resolve to this listener's address; then the page
//! could read the responses (DNS rebinding). Its requests have the page's name in
//! Host. Therefore names must be configured. Addresses are accepted, because the
//! name of a page is not another's address.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::header::HOST;
use http::uri::Authority;
use http::{Request, StatusCode};

/// Checks a request's host: that of its target where it has one, else Host.
///
/// # Errors
/// The status and the text of the response: 400 if Host is missing, repeated or malformed,
/// 421 if it is a name that is not configured.
pub(super) fn check<B>(request: &Request<B>, names: &[String]) -> Result<(), (StatusCode, String)> {
    let mut lines = request.headers().get_all(HOST).iter();
    let host = lines.next().filter(|_| lines.next().is_none());
    let host = host.and_then(|host| host.to_str().ok());
    let named = host.and_then(|host| match request.uri().authority() {
        Some(authority) => name(authority),
        None if host.is_empty() => Some(String::new()),
        None => name(&host.parse().ok()?),
    });
    let Some(name) = named else {
        let detail = "A request must have one Host field, of the form host or host:port";
        return Err((StatusCode::BAD_REQUEST, detail.to_owned()));
    };
    let v6 = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let is_address =
        v6.is_some_and(|v6| v6.parse::<Ipv6Addr>().is_ok()) || name.parse::<Ipv4Addr>().is_ok();
    // RFC 6761 §6.3: these names always resolve to the local machine.
    let is_local = name == "localhost" || name.ends_with(".localhost");
    if is_address || is_local || names.iter().any(|own| own.eq_ignore_ascii_case(&name)) {
        return Ok(());
    }
    let detail = format!(
        "The admin listener does not accept the host name {name:?}: use its address or localhost, or add the name to admin.hosts"
    );
    Err((StatusCode::MISDIRECTED_REQUEST, detail))
}

/// The host of an authority, in lower case. `None` if something but a port follows it, or
/// something precedes it.
fn name(authority: &Authority) -> Option<String> {
    let host = authority.host();
    let port = authority.as_str().strip_prefix(host)?;
    let port = port.strip_prefix(':').unwrap_or(port);
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
    let host = host.strip_suffix('.').unwrap_or(host);
    is_port.then(|| host.to_ascii_lowercase())
}

/// Whether a text may be a name in `admin.hosts`: a host without a port.
pub(crate) fn is_name(text: &str) -> bool {
    let parsed = text.parse::<Authority>();
    parsed.is_ok_and(|authority| authority.host() == text && !text.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_must_be_configured_and_addresses_are_accepted() {
        let rows: &[(&str, &[&str], u16)] = &[
            ("/", &["127.0.0.1"], 200),
            ("/", &["192.0.2.1:9090"], 200),
            ("/", &["[2001:db8::1]:9090"], 200),
            ("/", &["localhost:1"], 200),
            ("/", &["a.localhost."], 200),
            ("/", &["OWN.example:9090"], 200),
            ("/", &["x.own.example"], 421),
            ("/", &["rebound.example:9090"], 421),
            ("/", &["127.0.0.1.rebound.example"], 421),
            ("/", &["[::1].rebound.example"], 400),
            ("/", &[""], 421),
            ("/", &["a b"], 400),
            ("/", &["localhost@rebound.example"], 400),
            ("/", &["localhost", "localhost"], 400),
            ("/", &[], 400),
            ("http://localhost/", &["rebound.example"], 200),
            ("http://rebound.example/", &["localhost"], 421),
        ];
        for (target, hosts, expected) in rows {
            let mut request = Request::builder().uri(*target);
            for host in *hosts {
                request = request.header(HOST, *host);
            }
            let checked = check(&request.body(()).unwrap(), &["own.example".to_owned()]);
            let found = checked.map_or_else(|(status, _)| status.as_u16(), |()| 200);
            assert_eq!(&found, expected, "{target} {hosts:?}");
        }
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
