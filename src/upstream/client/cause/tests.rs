//! Texts of causes.

use std::io;

use super::classify::{beneath, io_kind};
use super::*;

#[test]
fn texts_are_bounded_and_single_line() {
    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Nested {
        text: String,
        source: Option<Box<Self>>,
    }
    let mut error = Nested {
        text: "innermost".to_owned(),
        source: None,
    };
    for number in 0..100 {
        error = Nested {
            text: format!("{number}\r\n{}", "x".repeat(10_000)),
            source: Some(Box::new(error)),
        };
    }
    let texts = texts(&error, |_| false);
    assert_eq!(texts.len(), MOST_TEXTS);
    for text in &texts {
        assert_eq!(text.chars().count(), MOST_CHARACTERS);
        assert!(!text.contains(char::is_control));
    }
}

/// A regression: a key was cut off, and the rest of it kept.
#[test]
fn a_secret_is_found_before_the_text_is_cut() {
    let secret = "s3cret-value";
    let text = format!("{}{secret}", "x".repeat(MOST_CHARACTERS - 5));
    let error = io::Error::other(text);
    let texts = texts(&error, |text| text.contains(secret));
    assert_eq!(texts, [WITHHELD]);
}

#[test]
fn errors_wrapped_by_io_errors_are_found_and_not_repeated() {
    let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
    let wrapped = io::Error::other(io::Error::other(refused));
    assert_eq!(io_kind(&wrapped).0, io::ErrorKind::ConnectionRefused);
    assert_eq!(texts(&wrapped, |_| false), ["connection refused"]);
    let tls = io::Error::other(io::Error::new(
        io::ErrorKind::InvalidData,
        rustls::Error::DecryptError,
    ));
    assert!(beneath::<rustls::Error>(&tls).is_some());
}
