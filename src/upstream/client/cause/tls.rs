//! Why TLS has failed: alerts and certificate errors.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most kinds of other crates' errors are of no interest here, and more may come"
)]

use rustls::{AlertDescription, CertificateError};

use crate::upstream::Unreachable;

/// The server requires a client certificate, and none was sent.
pub(super) const CLIENT_CERTIFICATE: (Unreachable, &str) = (
    Unreachable::ClientCertificate,
    "client_certificate_required",
);

/// Why TLS has failed. `requested`: the server has requested a client certificate.
pub(super) fn tls(error: &rustls::Error, requested: bool) -> (Unreachable, &'static str) {
    use rustls::Error as Tls;
    match error {
        Tls::InvalidCertificate(error) => (Unreachable::Certificate, certificate(error)),
        Tls::AlertReceived(alert) => self::alert(*alert, requested),
        Tls::InvalidMessage(_) => (Unreachable::Tls, "tls_malformed"),
        Tls::PeerIncompatible(_) => (Unreachable::Tls, "tls_incompatible"),
        Tls::PeerMisbehaved(_) => (Unreachable::Tls, "tls_misbehaved"),
        _ => (Unreachable::Tls, "tls_error"),
    }
}

/// The alert that a server sends before it ends a connection.
fn alert(alert: AlertDescription, requested: bool) -> (Unreachable, &'static str) {
    use AlertDescription as Alert;
    let kind = match alert {
        // A server sends these about its client's certificate, and ordgate has none.
        Alert::CertificateRequired
        | Alert::NoCertificate
        | Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA => return CLIENT_CERTIFICATE,
        // So do many servers of TLS 1.2, and some of TLS 1.3.
        Alert::HandshakeFailure | Alert::AccessDenied if requested => return CLIENT_CERTIFICATE,
        Alert::HandshakeFailure => "tls_alert_handshake_failure",
        Alert::AccessDenied => "tls_alert_access_denied",
        Alert::ProtocolVersion => "tls_alert_protocol_version",
        Alert::InsufficientSecurity => "tls_alert_insufficient_security",
        Alert::UnrecognisedName => "tls_alert_unrecognized_name",
        Alert::NoApplicationProtocol => "tls_alert_no_application_protocol",
        Alert::InternalError => "tls_alert_internal_error",
        Alert::DecodeError => "tls_alert_decode_error",
        Alert::DecryptError => "tls_alert_decrypt_error",
        Alert::IllegalParameter => "tls_alert_illegal_parameter",
        Alert::UnexpectedMessage => "tls_alert_unexpected_message",
        _ => "tls_alert_other",
    };
    (Unreachable::Alert, kind)
}

/// Why a certificate is not trusted.
fn certificate(error: &CertificateError) -> &'static str {
    use CertificateError as Certificate;
    match error {
        Certificate::Expired | Certificate::ExpiredContext { .. } => "certificate_expired",
        Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
            "certificate_not_yet_valid"
        }
        // A self-signed certificate has an unknown issuer as well.
        Certificate::UnknownIssuer => "certificate_unknown_issuer",
        Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => {
            "certificate_name_mismatch"
        }
        Certificate::Revoked => "certificate_revoked",
        Certificate::UnknownRevocationStatus
        | Certificate::ExpiredRevocationList
        | Certificate::ExpiredRevocationListContext { .. } => "certificate_revocation_unknown",
        Certificate::BadEncoding => "certificate_malformed",
        Certificate::BadSignature => "certificate_bad_signature",
        Certificate::InvalidPurpose | Certificate::InvalidPurposeContext { .. } => {
            "certificate_wrong_purpose"
        }
        Certificate::UnhandledCriticalExtension => "certificate_unknown_extension",
        // The default of `openssl req -x509`.
        Certificate::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "certificate_is_authority"
        }
        _ => "certificate_rejected",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_certificate_error_and_alert_has_its_kind() {
        use CertificateError as Error;
        for (error, kind) in [
            (Error::Expired, "expired"),
            (Error::NotValidYet, "not_yet_valid"),
            (Error::Revoked, "revoked"),
            (Error::UnknownIssuer, "unknown_issuer"),
            (Error::NotValidForName, "name_mismatch"),
            (Error::InvalidPurpose, "wrong_purpose"),
            (Error::BadSignature, "bad_signature"),
            (Error::UnknownRevocationStatus, "revocation_unknown"),
            (Error::ApplicationVerificationFailure, "rejected"),
        ] {
            let error = rustls::Error::InvalidCertificate(error);
            let (why, found) = tls(&error, true);
            assert_eq!(why, Unreachable::Certificate);
            assert_eq!(found.strip_prefix("certificate_"), Some(kind));
        }
        for number in 0..=255 {
            let received = AlertDescription::from(number);
            for requested in [false, true] {
                let (why, kind) = alert(received, requested);
                let is_required = matches!(number, 41..=46 | 48 | 116)
                    || (requested && matches!(number, 40 | 49));
                let expected = match is_required {
                    true => Unreachable::ClientCertificate,
                    false => Unreachable::Alert,
                };
                assert_eq!(why, expected, "{number} {received:?}");
                assert_eq!(kind.starts_with("tls_alert_"), !is_required);
            }
        }
    }
}
