//! Certificates from files: what is refused and why, and how they are replaced.

mod pem;

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
        let problems = check(&self.settings(), false, now).join("\n");
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
    for (chain, key, at, expected) in [
        (&*chain, &*key, now(), ""),
        (
            &chain,
            &other_key,
            now(),
            "at: the key in key.pem does not belong to the certificate in cert.pem",
        ),
        (
            &wrong_order,
            &leaf_key.serialize_pem(),
            now(),
            "at: the key in key.pem does not belong to the first certificate in cert.pem, but to a later one: the server's own certificate must come first",
        ),
        (
            &chain,
            &key,
            now() + DAY * 365,
            "at: the certificate in cert.pem has expired: it was valid until Fri, 01 Jan 2027 00:00:00 GMT",
        ),
        (
            &chain,
            &key,
            now() - DAY * 365,
            "at: the certificate in cert.pem is not valid before Thu, 01 Jan 2026 00:00:00 GMT",
        ),
        (
            "",
            &key,
            now(),
            "at: cert.pem holds no certificate; allowed is PEM (-----BEGIN CERTIFICATE-----)",
        ),
        (
            &key,
            &key,
            now(),
            "at: cert.pem holds no certificate; allowed is PEM (-----BEGIN CERTIFICATE-----)",
        ),
        (
            &broken,
            &key,
            now(),
            "at: cert.pem is not valid PEM: the base64 in it is malformed",
        ),
        (
            not_x509,
            &key,
            now(),
            "at: cert.pem has a first certificate that is not valid X.509 version 3: TrailingData(SignedData)",
        ),
        (
            &chain,
            "",
            now(),
            "at: key.pem holds no private key; allowed is PEM with PKCS#8 (BEGIN PRIVATE KEY), PKCS#1 (BEGIN RSA PRIVATE KEY) or SEC1 (BEGIN EC PRIVATE KEY)",
        ),
        (
            &chain,
            &chain,
            now(),
            "at: key.pem holds no private key; allowed is PEM with PKCS#8 (BEGIN PRIVATE KEY), PKCS#1 (BEGIN RSA PRIVATE KEY) or SEC1 (BEGIN EC PRIVATE KEY)",
        ),
        (
            &chain,
            encrypted,
            now(),
            "at: key.pem has an encrypted key; allowed is one without a passphrase (openssl pkey -in ... -out ...)",
        ),
        (
            &chain,
            old_encrypted,
            now(),
            "at: key.pem has an encrypted key; allowed is one without a passphrase (openssl pkey -in ... -out ...)",
        ),
        (
            &chain,
            unknown,
            now(),
            "at: key.pem has a key that cannot be used; allowed are RSA with 2048 to 8192 bits, ECDSA with P-256, P-384 or P-521, and Ed25519",
        ),
        (
            &chain,
            &key.replacen("MI", "??", 1),
            now(),
            "at: key.pem is not valid PEM: the base64 in it is malformed",
        ),
        // Errors of the parser have the rest of the file, which may be a key.
        (
            &chain.replace('\n', " "),
            &key,
            now(),
            "at: cert.pem is not valid PEM: a part of it has no line -----END ...-----",
        ),
        (
            &format!("{chain}-----BEGIN PRIVATE KEY\n"),
            &key,
            now(),
            "at: cert.pem is not valid PEM: a line that begins with -----BEGIN is malformed",
        ),
        (
            &chain,
            &key.replace('\n', ""),
            now(),
            "at: key.pem is not valid PEM: a part of it has no line -----END ...-----",
        ),
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
    assert!(check(&none, false, now())[0].starts_with(expected));
    assert!(check(&none, true, now()).is_empty(), "with --sandbox");
}

/// The days that are left, and the reason for a refusal.
fn status(server: &TlsServer, now: SystemTime) -> (Vec<Box<str>>, i64, Option<String>) {
    let [status] = <[_; 1]>::try_from(server.status(now)).unwrap();
    (status.names, status.days, status.refused)
}

#[test]
fn changed_files_replace_a_certificate_and_bad_ones_do_not() {
    let (first, second) = (pair(&["first.example"]), pair(&["second.example"]));
    let of = |pair: &(String, String)| (pair.0.clone(), pair.1.clone());
    let files = Files::with((&first.0, &first.1));
    let (tls, counts) = (Tls::new(false), TlsCounts::default());
    let server = tls.server(&files.settings(), &[], now()).unwrap();
    let names = |name: &str| vec![Box::<str>::from(name)];
    let counted = || {
        let counts = [&counts.certificates_replaced, &counts.certificates_refused];
        counts.map(|count| count.load(Relaxed))
    };
    let maintain = |now| tls.maintain(std::slice::from_ref(&server), &counts, now);

    maintain(now());
    assert_eq!(status(&server, now()), (names("first.example"), 214, None));
    assert_eq!(counted(), [0, 0], "nothing has changed");

    // The new certificate is there, and its key is not yet.
    let (chain, key) = (of(&second).0, of(&first).1);
    files.write((&chain, &key));
    for _ in 0..3 {
        maintain(now());
    }
    let (kept, _, why) = status(&server, now());
    assert_eq!(kept, names("first.example"));
    assert!(why.unwrap().contains("does not belong to the certificate"));
    assert_eq!(counted(), [0, 1], "counted once");

    files.write((&second.0, &second.1));
    maintain(now());
    assert_eq!(status(&server, now()), (names("second.example"), 214, None));
    assert_eq!(counted(), [1, 1]);

    // Files that are gone for a moment.
    fs::remove_file(files.0.path().join("cert.pem")).unwrap();
    maintain(now());
    assert!(status(&server, now()).2.unwrap().contains("cannot read"));
    files.write((&second.0, &second.1));
    maintain(now());
    assert_eq!(status(&server, now()), (names("second.example"), 214, None));
    assert_eq!(counted(), [1, 2]);

    // A certificate in use that expires stays in use: there is no better one.
    let late = now() + DAY * 300;
    maintain(late);
    assert_eq!(status(&server, late), (names("second.example"), -87, None));
    // Another that has expired does not replace it.
    files.write((&first.0, &first.1));
    maintain(late);
    assert!(status(&server, late).2.unwrap().contains("has expired"));
    assert_eq!(counted(), [1, 3]);
}

#[test]
fn a_reload_keeps_what_it_has_already_loaded() {
    let (first, second) = (pair(&["first.example"]), pair(&["second.example"]));
    let files = Files::with((&first.0, &first.1));
    let tls = Tls::new(false);
    let load = |in_use: &[Arc<TlsServer>], now| tls.server(&files.settings(), in_use, now);
    let server = load(&[], now()).unwrap();
    let expired = now() + DAY * 365;
    assert!(load(&[], expired).is_err(), "at start it is refused");
    let in_use = [server];
    let again = load(&in_use, expired).unwrap();
    assert_eq!(
        status(&again, expired).0,
        [Box::<str>::from("first.example")]
    );
    // Another one that has expired is refused.
    files.write((&second.0, &second.1));
    let refused = load(&in_use, expired).unwrap_err().join(" ");
    assert!(
        refused.contains("has expired: it was valid until"),
        "{refused}"
    );
    assert!(load(&in_use, now()).is_ok());
    // So is a pair of which only the key is the same.
    files.write((&second.0, &first.1));
    let refused = load(&in_use, now()).unwrap_err().join(" ");
    assert!(refused.contains("does not belong"), "{refused}");
}

#[test]
fn one_bad_pair_does_not_keep_another_from_being_replaced() {
    let (one, other, next) = (
        pair(&["one.example"]),
        pair(&["other.example"]),
        pair(&["next.example"]),
    );
    let (first, second) = (
        Files::with((&one.0, &one.1)),
        Files::with((&other.0, &other.1)),
    );
    let mut settings = first.settings();
    settings.certificates.extend(second.settings().certificates);
    let (tls, counts) = (Tls::new(false), TlsCounts::default());
    let server = tls.server(&settings, &[], now()).unwrap();
    first.write(("nothing", "nothing"));
    second.write((&next.0, &next.1));
    tls.maintain(std::slice::from_ref(&server), &counts, now());
    let names: Vec<_> = server
        .status(now())
        .into_iter()
        .flat_map(|one| one.names)
        .collect();
    assert_eq!(
        names,
        ["one.example".into(), Box::<str>::from("next.example")]
    );
}
