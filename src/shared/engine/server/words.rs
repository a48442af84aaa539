//! Errors of the crate `redis` in words.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::shared::engine::SharedError;

/// What an operator can do about an error whose text does not say it.
fn explained(kind: ErrorKind, text: &str) -> Option<&'static str> {
    let elsewhere = [ServerErrorKind::Moved, ServerErrorKind::Ask].map(ErrorKind::Server);
    if elsewhere.contains(&kind) {
        return Some(
            "it is a node of a cluster: the cluster's nodes belong in the URL, separated by commas",
        );
    }
    let wants_password = ["unauthenticated", "NOAUTH"];
    let wants_password = wants_password.iter().any(|words| text.contains(words));
    wants_password.then_some(
        "it wants a password, which belongs in the URL: redis://user:password@host:6379/0",
    )
}

/// The error in words. No error of the crate has the password.
pub(super) fn in_words(error: &RedisError) -> SharedError {
    let (kind, text) = (error.kind(), error.to_string());
    let text = match explained(kind, &text) {
        Some(reason) => format!("{reason} ({text})").into(),
        None => text.into(),
    };
    let is_unreadable = [ErrorKind::Parse, ErrorKind::UnexpectedReturnType].contains(&kind);
    let is_refused = matches!(
        kind,
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed
    );
    match (is_unreadable, is_refused) {
        _ if error.is_timeout() => SharedError::Late,
        (true, _) => SharedError::Unreadable,
        (false, true) => SharedError::Refused(text),
        (false, false) => SharedError::Connection(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_to_do_where_its_text_does_not() {
        for (line, expected) in [
            (
                "MOVED 42 10.0.0.2:7000",
                "the cluster's nodes belong in the URL",
            ),
            (
                "ERR Protocol error: unauthenticated multibulk length",
                "it wants a password",
            ),
            ("NOAUTH Authentication required.", "it wants a password"),
            ("WRONGPASS invalid username-password pair", "WRONGPASS"),
        ] {
            let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
            let error = value.extract_error().unwrap_err();
            let text = in_words(&error).to_string();
            assert!(text.starts_with("the engine refuses: "), "{text}");
            assert!(text.contains(expected), "{text}");
        }
    }
}
