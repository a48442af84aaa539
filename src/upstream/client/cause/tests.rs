//! Texts of causes, and the words of TLS.

use super::*;

#[test]
fn every_certificate_error_and_alert_has_its_word() {
    let words = [
        (CertificateError::Expired, "certificate_expired"),
        (CertificateError::NotValidYet, "certificate_not_yet_valid"),
        (CertificateError::Revoked, "certificate_revoked"),
        (
            CertificateError::UnknownIssuer,
            "certificate_unknown_issuer",
        ),
        (
            CertificateError::NotValidForName,
            "certificate_name_mismatch",
        ),
        (
            CertificateError::InvalidPurpose,
            "certificate_wrong_purpose",
        ),
        (CertificateError::BadSignature, "certificate_bad_signature"),
        (
            CertificateError::UnknownRevocationStatus,
            "certificate_revocation_unknown",
        ),
        (
            CertificateError::ApplicationVerificationFailure,
            "certificate_rejected",
        ),
    ];
    for (error, word) in words {
        let error = rustls::Error::InvalidCertificate(error);
        assert_eq!(tls(&error, true), (Unreachable::Certificate, word));
    }
    for number in 0..=255 {
        let received = AlertDescription::from(number);
        for asked in [false, true] {
            let (why, word) = alert(received, asked);
            let demands =
                matches!(number, 41..=46 | 48 | 116) || (asked && matches!(number, 40 | 49));
            let expected = match demands {
                true => Unreachable::ClientCertificate,
                false => Unreachable::Alert,
            };
            assert_eq!(why, expected, "{number} {received:?}");
            assert_eq!(word.starts_with("tls_alert_"), !demands);
        }
    }
}

#[test]
fn texts_are_bounded_and_of_one_line() {
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

/// A regression: what is cut off a key left the rest of it.
#[test]
fn a_secret_is_found_before_the_text_is_cut() {
    let secret = "s3cret-value";
    let text = format!("{}{secret}", "x".repeat(MOST_CHARACTERS - 5));
    let error = io::Error::other(text);
    let texts = texts(&error, |text| text.contains(secret));
    assert_eq!(texts, [WITHHELD]);
}

#[test]
fn what_io_errors_wrap_is_found_and_said_once() {
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
