//! Kinds of certificate errors and alerts.

use super::*;

#[test]
fn every_certificate_error_and_alert_has_its_kind() {
    let kinds = [
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
    for (error, kind) in kinds {
        let error = rustls::Error::InvalidCertificate(error);
        assert_eq!(tls(&error, true), (Unreachable::Certificate, kind));
    }
    for number in 0..=255 {
        let received = AlertDescription::from(number);
        for requested in [false, true] {
            let (why, kind) = alert(received, requested);
            let is_required =
                matches!(number, 41..=46 | 48 | 116) || (requested && matches!(number, 40 | 49));
            let expected = match is_required {
                true => Unreachable::ClientCertificate,
                false => Unreachable::Alert,
            };
            assert_eq!(why, expected, "{number} {received:?}");
            assert_eq!(kind.starts_with("tls_alert_"), !is_required);
        }
    }
}
