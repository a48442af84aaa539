//! Origins as browsers send them (RFC 6454 §6.2), and which of them are allowed. They are
//! compared byte by byte, so what no browser sends is refused when it is read.

use http::HeaderValue;
use serde::{Deserialize, Serialize};
use url::Url;

/// What may stand in a list of origins.
pub(crate) const ALLOWED: &str = "an origin as browsers send it (in lower case, without a path and without the default port), such as \"https://app.example\"; \"https://*.app.example\" for all names below app.example; or \"*\" for any origin";

/// An allowed origin: one, all those whose host is below a domain (`https://*.a.example`, where
/// one or more labels take the asterisk's place), or any (`*`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub struct AllowedOrigin(String);

impl AllowedOrigin {
    fn matches(&self, origin: &[u8]) -> bool {
        let Some((scheme, domain)) = self.0.split_once('*') else {
            return origin == self.0.as_bytes();
        };
        let labels = origin.strip_prefix(scheme.as_bytes());
        let labels = labels.and_then(|rest| rest.strip_suffix(domain.as_bytes()));
        let is_in_a_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
        labels.is_some_and(|labels| !labels.is_empty() && labels.iter().all(is_in_a_name))
    }
}

impl TryFrom<String> for AllowedOrigin {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        // An asterisk stands for the first labels of a name, and nowhere else.
        let one = text.replacen("://*.", "://", 1);
        match text == "*" || !one.contains('*') && is_sent_by_browsers(&one) {
            true => Ok(Self(text)),
            false => Err(format!("expected {ALLOWED}")),
        }
    }
}

impl std::fmt::Display for AllowedOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The origins that a list allows; `None` where it allows any.
pub(crate) fn restriction(list: &[AllowedOrigin]) -> Option<Box<[AllowedOrigin]>> {
    let is_any = list.is_empty() || list.iter().any(|one| one.0 == "*");
    (!is_any).then(|| list.into())
}

/// Whether an origin is one of these.
pub(crate) fn is_among(allowed: &[AllowedOrigin], origin: &HeaderValue) -> bool {
    allowed.iter().any(|one| one.matches(origin.as_bytes()))
}

/// Whether a text is an origin in the form in which browsers send it.
fn is_sent_by_browsers(text: &str) -> bool {
    text.parse::<Url>().is_ok_and(|url| {
        let port = url.port().map(|port| format!(":{port}"));
        let (scheme, port) = (url.scheme(), port.unwrap_or_default());
        url.host()
            .is_some_and(|host| text == format!("{scheme}://{host}{port}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_browser_sends_is_refused() {
        for (text, is_allowed) in [
            ("https://a.example", true),
            ("http://a.example:443", true),
            ("https://a:8443", true),
            ("http://[::1]:8080", true),
            ("http://127.0.0.1", true),
            ("chrome-extension://abcdefgh", true),
            ("https://*.a.example", true),
            ("http://*.localhost:3000", true),
            ("*", true),
            ("", false),
            ("null", false),
            ("a.example", false),
            ("*.a.example", false),
            ("https://", false),
            ("https://:8443", false),
            ("https://a/", false),
            ("https://a/b", false),
            ("https://a?b", false),
            ("https://u@a", false),
            ("https://A.example", false),
            ("HTTPS://a.example", false),
            ("https://a.example:443", false),
            ("http://[::1]:80", false),
            ("https://a.example:", false),
            ("https://a.example:08443", false),
            ("https://a.example:99999", false),
            ("https://é.example", false),
            ("https://*", false),
            ("https://*.", false),
            ("https://*.*.a.example", false),
            ("https://a*.example", false),
            ("https://a.*.example", false),
            ("https://a.example:*", false),
            ("https://*.A.example", false),
            ("https://*.a.example/", false),
        ] {
            let read = AllowedOrigin::try_from(text.to_owned());
            assert_eq!(read.is_ok(), is_allowed, "{text}");
        }
    }

    #[test]
    fn an_asterisk_stands_for_one_or_more_labels() {
        let pattern = AllowedOrigin("https://*.a.example:81".to_owned());
        for (origin, is_allowed) in [
            ("https://b.a.example:81", true),
            ("https://c-1.b_2.a.example:81", true),
            ("https://a.example:81", false),
            ("https://.a.example:81", false),
            ("https://b.a.example", false),
            ("http://b.a.example:81", false),
            ("https://xa.example:81", false),
            ("https://b.a.example:81.evil.example", false),
            ("https://evil.example/.a.example:81", false),
            ("https://evil.example:80@x.a.example:81", false),
            ("null", false),
        ] {
            let origin_field = HeaderValue::from_static(origin);
            assert_eq!(
                is_among(std::slice::from_ref(&pattern), &origin_field),
                is_allowed,
                "{origin}"
            );
        }
        assert_eq!(restriction(&[]), None);
        assert_eq!(
            restriction(&[pattern.clone(), AllowedOrigin("*".to_owned())]),
            None
        );
        assert_eq!(
            restriction(std::slice::from_ref(&pattern)).as_deref(),
            Some(&[pattern][..])
        );
    }
}
