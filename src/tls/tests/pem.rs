//! The shapes of PEM files that are read.

use super::*;

/// The contents of the outer element of some DER, with the rest after it.
fn open(der: &[u8]) -> (&[u8], &[u8]) {
    let (header, length) = match der[1] {
        short @ ..0x80 => (2, usize::from(short)),
        long => {
            let bytes = usize::from(long & 0x7f);
            let length = der[2..2 + bytes].iter();
            (
                2 + bytes,
                length.fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
            )
        }
    };
    der[header..].split_at(length)
}

/// A key in the older format that its PKCS#8 contains: PKCS#1 for RSA, SEC1 for EC.
fn older(key: &KeyPair, label: &str) -> String {
    let pkcs8 = key.serialize_der();
    // The version, the algorithm, then the key.
    let key = (0..2).fold(open(&pkcs8).0, |rest, _| open(rest).1);
    pem(label, open(key).0)
}

fn pem(label: &str, der: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for (at, group) in der.chunks(3).enumerate() {
        let bits = (0..3).fold(0, |bits, n| {
            bits << 8 | u32::from(*group.get(n).unwrap_or(&0))
        });
        let digits = (0..4).map(|n| match n <= group.len() {
            true => char::from(DIGITS[(bits >> (18 - 6 * n) & 63) as usize]),
            false => '=',
        });
        text.extend(digits);
        if at % 16 == 15 {
            text.push('\n');
        }
    }
    let text = text.trim_end();
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

fn problems(chain: &str, key: &str) -> String {
    Files::with((chain, key)).problems(now())
}

#[test]
fn keys_are_read_with_the_labels_that_openssl_writes() {
    let keys = [&rcgen::PKCS_RSA_SHA256, &rcgen::PKCS_ECDSA_P256_SHA256].map(key_of);
    let [rsa, ec] = keys.each_ref().map(|key| {
        let certificate = params(&["a.example"]).self_signed(key);
        certificate.unwrap().pem()
    });
    let pkcs1 = older(&keys[0], "RSA PRIVATE KEY");
    let sec1 = older(&keys[1], "EC PRIVATE KEY");
    // `openssl ecparam -genkey` writes the curve before the key: here that of P-256.
    let p256 = [6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
    let parameters = pem("EC PARAMETERS", &p256);
    for (name, chain, key) in [
        ("PKCS#1", &rsa, pkcs1),
        ("PKCS#8 of RSA", &rsa, keys[0].serialize_pem()),
        ("SEC1", &ec, sec1.clone()),
        (
            "SEC1 after its parameters",
            &ec,
            format!("{parameters}{sec1}"),
        ),
        ("PKCS#8 of EC", &ec, keys[1].serialize_pem()),
    ] {
        assert_eq!(problems(chain, &key), "", "{name}");
        let windows = (chain.replace('\n', "\r\n"), key.replace('\n', "\r\n"));
        assert_eq!(problems(&windows.0, &windows.1), "", "{name}, CRLF");
        let other = if *chain == rsa { &ec } else { &rsa };
        let mismatch = problems(other, &key);
        assert!(mismatch.contains("does not belong"), "{name}: {mismatch}");
    }
    let only = problems(&ec, &parameters);
    assert!(only.contains("holds no private key"), "{only}");
}
