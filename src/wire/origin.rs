//! Origins as browsers write them (RFC 6454 §6.2). They are compared byte by byte, so
//! one that is written in another way never matches.

use http::{HeaderValue, Uri};

/// Reads an origin.
///
/// # Errors
/// What is wrong with it; empty where it is no origin at all.
pub(crate) fn parse(text: &str) -> Result<HeaderValue, &'static str> {
    let uri: Uri = text.parse().map_err(|_no_uri| "")?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err("");
    };
    // Nothing else, such as a path.
    if text.len() != scheme.len() + "://".len() + authority.as_str().len() {
        return Err("");
    }
    if authority.as_str().contains('@') {
        return Err("write it without the user, which browsers do not send");
    }
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err("write it in lower case, as browsers send it");
    }
    let port = authority.as_str().strip_prefix(authority.host());
    if matches!(
        (scheme, port),
        ("https", Some(":443")) | ("http", Some(":80")) | (_, Some(":"))
    ) {
        return Err("write it without the default port, which browsers do not send");
    }
    HeaderValue::from_str(text).map_err(|_not_ascii| "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_browsers_send_is_an_origin() {
        for text in [
            "https://a.example",
            "http://a.example:443",
            "https://a.example:80",
            "https://a:8443",
            "http://[::1]:8080",
            "http://127.0.0.1",
            "chrome-extension://abcdefgh",
        ] {
            assert_eq!(parse(text).unwrap(), text);
        }
        for (text, expected) in [
            ("", ""),
            ("null", ""),
            ("a.example", ""),
            ("/a", ""),
            ("https://", ""),
            ("https://a/", ""),
            ("https://a/b", ""),
            ("https://a?b", ""),
            ("https://a#b", ""),
            ("https://u@a", "without the user"),
            ("https://u:p@a", "without the user"),
            ("https://A.example", "in lower case"),
            ("HTTPS://a.example", "in lower case"),
            ("https://a.example:443", "without the default port"),
            ("http://a.example:80", "without the default port"),
            ("http://[::1]:80", "without the default port"),
            ("https://a.example:", "without the default port"),
        ] {
            let fault = parse(text).unwrap_err();
            assert_eq!(fault.is_empty(), expected.is_empty(), "{text}: {fault}");
            assert!(fault.contains(expected), "{text}: {fault}");
        }
    }
}
