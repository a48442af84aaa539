//! Certificates from files: what is refused and why, and how they are replaced.

mod choice;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair, SignatureAlgorithm, date_time_ymd};
use tempfile::TempDir;

use super::*;

const DAY: Duration = Duration::from_hours(24);

/// 2026-06-01.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + DAY * 20_605
}

fn params(names: &[&str]) -> CertificateParams {
    let mut params =
        CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
    if let Ok(params) = &mut params {
        params.not_before = date_time_ymd(2026, 1, 1);
        params.not_after = date_time_ymd(2027, 1, 1);
    }
    params.unwrap()
}

fn key_of(algorithm: &'static SignatureAlgorithm) -> KeyPair {
    KeyPair::generate_for(algorithm).unwrap()
}

/// A certificate for these names and its key, as PEM.
fn pair(names: &[&str]) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = params(names).self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

/// A folder with files of these contents, the first being `cert.pem`.
struct Files(TempDir);

impl Files {
    fn with((chain, key): (&str, &str)) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.write((chain, key));
        files
    }

    fn write(&self, (chain, key): (&str, &str)) {
        for (name, text, mode) in [("cert.pem", chain, 0o644), ("key.pem", key, 0o600)] {
            let path = self.0.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
    }

    fn settings(&self) -> TlsSettings {
        TlsSettings {
            min_version: TlsVersion::Tls12,
            certificates: vec![CertificateFiles {
                chain: self.0.path().join("cert.pem"),
                key: self.0.path().join("key.pem"),
            }],
        }
    }

    /// The problems, without the folder and the location.
    fn problems(&self, now: SystemTime) -> String {
        let problems = check(&self.settings(), now).join("\n");
        let folder = format!("{}/", self.0.path().display());
        let problems = problems.replace(&folder, "");
        problems.replace("listener.tls.certificates: ", "at: ")
    }
}

#[test]
fn what_cannot_be_used_is_refused_with_its_file_and_the_reason() {
    let (chain, key) = pair(&["a.example"]);
    let (_, other_key) = pair(&["a.example"]);
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = params(&[]);
    ca.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, ca_key).unwrap();
    let leaf_key = KeyPair::generate().unwrap();
    let leaf = params(&["a.example"]).signed_by(&leaf_key, &ca).unwrap();
    let wrong_order = format!("{}{}", ca.pem(), leaf.pem());
    let broken = chain.replacen("MII", "!!!", 1);
    let not_x509 = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\naGVsbG8=\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let old_encrypted = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\naGVsbG8=\n-----END RSA PRIVATE KEY-----\n";
    let unknown = "-----BEGIN PRIVATE KEY-----\naGVsbG8=\n-----END PRIVATE KEY-----\n";
    let other = "at: the key in key.pem does not belong to the first certificate in cert.pem, which must be the server's own";
    let dates = "at: the certificate in cert.pem is not valid now, but from Thu, 01 Jan 2026 00:00:00 GMT until Fri, 01 Jan 2027 00:00:00 GMT";
    let no_chain = "at: cert.pem has no certificate, or malformed PEM; allowed are blocks that begin with a line -----BEGIN CERTIFICATE-----";
    let no_key = "at: key.pem holds no private key that can be used; allowed is PEM without a passphrase, with PKCS#8 (BEGIN PRIVATE KEY), PKCS#1 (BEGIN RSA PRIVATE KEY) or SEC1 (BEGIN EC PRIVATE KEY): RSA with 2048 to 8192 bits, ECDSA with P-256, P-384 or P-521, or Ed25519";
    let no_x509 = "at: cert.pem has a first certificate that is not valid X.509";
    let (one_line, unended) = (
        chain.replace('\n', " "),
        format!("{chain}-----BEGIN PRIVATE KEY\n"),
    );
    for (chain, key, at, expected) in [
        (&*chain, &*key, now(), ""),
        (&chain, &other_key, now(), other),
        (&wrong_order, &leaf_key.serialize_pem(), now(), other),
        (&chain, &key, now() + DAY * 365, dates),
        (&chain, &key, now() - DAY * 365, dates),
        ("", &key, now(), no_chain),
        (&key, &key, now(), no_chain),
        (&broken, &key, now(), no_chain),
        // The parser's own errors have the rest of the file, which may be a key.
        (&one_line, &key, now(), no_chain),
        (&unended, &key, now(), no_chain),
        (not_x509, &key, now(), no_x509),
        (&chain, "", now(), no_key),
        (&chain, &chain, now(), no_key),
        (&chain, encrypted, now(), no_key),
        (&chain, old_encrypted, now(), no_key),
        (&chain, unknown, now(), no_key),
        (&chain, &key.replacen("MI", "??", 1), now(), no_key),
        (&chain, &key.replace('\n', ""), now(), no_key),
    ] {
        let files = Files::with((chain, key));
        assert_eq!(files.problems(at), expected);
    }
}

#[test]
fn files_that_are_missing_too_large_or_open_to_others_are_refused() {
    let (chain, key) = pair(&["a.example"]);
    let files = Files::with((&chain, &key));
    let path = |name: &str| files.0.path().join(name);
    let expect = |expected: &str| assert_eq!(files.problems(now()), expected);
    fs::set_permissions(path("key.pem"), Permissions::from_mode(0o644)).unwrap();
    expect(
        "at: the key key.pem has mode 0644, and so others have access to it; allowed is 0600, 0400, 0640 or 0440 (nothing for others, no writing for the group): chmod 600 key.pem",
    );
    fs::remove_file(path("key.pem")).unwrap();
    expect("at: cannot read the key key.pem: No such file or directory (os error 2)");
    fs::write(path("cert.pem"), chain.repeat((1 << 20) / chain.len() + 1)).unwrap();
    expect("at: cannot read cert.pem: it has more than 1MiB, the most that is read of it");
    fs::remove_file(path("cert.pem")).unwrap();
    expect("at: cannot read cert.pem: No such file or directory (os error 2)");
    fs::create_dir(path("cert.pem")).unwrap();
    expect(
        "at: cannot read cert.pem: it is a directory; allowed is a regular file, which a reload can read again: write the content to a file and name that one",
    );
    fs::remove_dir(path("cert.pem")).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, path("cert.pem"), mode).unwrap();
    expect(
        "at: cannot read cert.pem: it is a pipe; allowed is a regular file, which a reload can read again: write the content to a file and name that one",
    );
    let none = TlsSettings {
        certificates: Vec::new(),
        ..files.settings()
    };
    let expected = "listener.tls.certificates is missing";
    assert!(check(&none, now())[0].starts_with(expected));
}

/// The names, the days that are left, and the reason for a refusal.
fn status(server: &TlsServer, now: SystemTime) -> (String, i64, Option<String>) {
    let [status] = <[_; 1]>::try_from(server.status(now)).unwrap();
    (status.names.concat(), status.days, status.refused)
}

#[test]
fn changed_files_replace_a_certificate_and_bad_ones_do_not() {
    let (first, second) = (pair(&["first.example"]), pair(&["second.example"]));
    let files = Files::with((&first.0, &first.1));
    let settings = files.settings();
    let server = Tls::default().server(&settings, &[], now()).unwrap();
    let late = now() + DAY * 300;
    // the files, when they are read, the certificate in use then, and a part of the reason
    for (chain, key, at, in_use, refused) in [
        (&first.0, &first.1, now(), "first.example", None),
        // The key is not there yet.
        (
            &second.0,
            &first.1,
            now(),
            "first.example",
            Some("does not belong"),
        ),
        (&second.0, &second.1, now(), "second.example", None),
        (
            &String::new(),
            &second.1,
            now(),
            "second.example",
            Some("has no certificate"),
        ),
        // One in use that expires stays in use, and another one that has is refused.
        (&second.0, &second.1, late, "second.example", None),
        (
            &first.0,
            &first.1,
            late,
            "second.example",
            Some("is not valid now"),
        ),
    ] {
        files.write((chain, key));
        server.reread(at);
        let (names, days, why) = status(&server, at);
        assert_eq!(names, in_use);
        assert_eq!(days, if at == late { -86 } else { 214 });
        assert_eq!(why.is_some(), refused.is_some(), "{why:?}");
        assert!(why.is_none_or(|why| why.contains(refused.unwrap())));
    }
}

#[test]
fn a_reload_keeps_what_is_in_use_although_it_has_expired() {
    let (first, second) = (pair(&["first.example"]), pair(&["second.example"]));
    let files = Files::with((&first.0, &first.1));
    let tls = Tls::default();
    let load = |in_use: &[Arc<TlsServer>], now| tls.server(&files.settings(), in_use, now);
    let in_use = [load(&[], now()).unwrap()];
    let expired = now() + DAY * 365;
    assert!(load(&[], expired).is_err(), "at start it is refused");
    assert!(load(&in_use, expired).is_ok());
    files.write((&second.0, &second.1));
    let refused = load(&in_use, expired).err().unwrap().concat();
    assert!(refused.contains("is not valid now"), "{refused}");
    assert!(load(&in_use, now()).is_ok());
}

#[test]
fn one_bad_pair_does_not_keep_another_from_being_replaced() {
    let [one, other, next] = ["one.example", "other.example", "next.example"].map(|n| pair(&[n]));
    let first = Files::with((&one.0, &one.1));
    let second = Files::with((&other.0, &other.1));
    let mut settings = first.settings();
    settings.certificates.extend(second.settings().certificates);
    let server = Tls::default().server(&settings, &[], now()).unwrap();
    first.write(("nothing", "nothing"));
    second.write((&next.0, &next.1));
    server.reread(now());
    let names = server.status(now()).into_iter().flat_map(|one| one.names);
    assert_eq!(names.collect::<Vec<_>>(), ["one.example", "next.example"]);
}
