//! Which certificate is chosen for a name.

use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256};
use rustls::SignatureScheme;

use super::*;

const ECDSA: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;
const RSA: SignatureScheme = SignatureScheme::RSA_PSS_SHA256;
const ED25519: SignatureScheme = SignatureScheme::ED25519;

fn certificate(names: &[&str], algorithm: &'static SignatureAlgorithm) -> Arc<Certificate> {
    let key = key_of(algorithm);
    let chain = params(names).self_signed(&key).unwrap().pem();
    let files = Files::with((&chain, &key.serialize_pem()));
    let files = &files.settings().certificates[0];
    Arc::new(Certificate::read(files, &[], now()).unwrap())
}

#[test]
fn the_exact_name_comes_before_a_wildcard_and_that_before_the_first() {
    let certificates = [
        certificate(&["first.example"], &PKCS_ECDSA_P256_SHA256),
        certificate(&["*.shop.example"], &PKCS_ECDSA_P256_SHA256),
        certificate(&["a.shop.example", "b.example"], &PKCS_ECDSA_P256_SHA256),
        certificate(&["both.example"], &PKCS_RSA_SHA256),
        certificate(&["both.example"], &PKCS_ECDSA_P256_SHA256),
        certificate(&["ed.example"], &PKCS_ED25519),
        certificate(
            &["*.a.shop.example", "shop.example"],
            &PKCS_ECDSA_P256_SHA256,
        ),
    ];
    for (name, schemes, expected) in [
        (None, &[ECDSA, RSA][..], 0),
        (Some("first.example"), &[ECDSA, RSA], 0),
        (Some("FIRST.example"), &[ECDSA], 0),
        (Some("unknown.example"), &[ECDSA], 0),
        (Some("example"), &[ECDSA], 0),
        (Some("localhost"), &[ECDSA], 0),
        (Some("x.shop.example"), &[ECDSA], 1),
        (Some("X.Shop.Example"), &[ECDSA], 1),
        // An exact name wins.
        (Some("a.shop.example"), &[ECDSA], 2),
        (Some("b.example"), &[ECDSA], 2),
        // A wildcard stands for one label, and for one at least.
        (Some("x.a.shop.example"), &[ECDSA], 6),
        (Some("x.y.shop.example"), &[ECDSA], 0),
        (Some("shop.example"), &[ECDSA], 6),
        // A name that looks like a wildcard has no meaning of its own.
        (Some("*.shop.example"), &[ECDSA], 1),
        // The cheaper key that the client can check.
        (Some("both.example"), &[RSA, ECDSA], 4),
        (Some("both.example"), &[ECDSA], 4),
        (Some("both.example"), &[RSA], 3),
        (Some("ed.example"), &[ED25519, ECDSA], 5),
        // None that it can check: the handshake fails with the reason.
        (Some("ed.example"), &[RSA], 5),
        (Some("both.example"), &[], 4),
    ] {
        let chosen = choose(&certificates, name, schemes).unwrap();
        let at = certificates
            .iter()
            .position(|one| Arc::ptr_eq(&one.key, &chosen));
        assert_eq!(at, Some(expected), "{name:?} {schemes:?}");
    }
}
