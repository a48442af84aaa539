//! A certificate with its private key: read from two files, checked, and chosen for a
//! client.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, SignatureAlgorithm, SignatureScheme};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use super::CertificateFiles;
use crate::cache::date as http_date;
use crate::regular_file;
use crate::secrets;

/// The most bytes of a file of certificates.
const MAX_BYTES: u64 = 1 << 20;

/// A certificate that has been checked.
#[derive(Debug)]
pub(super) struct Certificate {
    /// For handshakes.
    pub(super) key: Arc<CertifiedKey>,
    /// The DNS names in it, in lower case.
    pub(super) names: Vec<String>,
    /// Until when it is valid.
    pub(super) not_after: SystemTime,
}

impl Certificate {
    /// Reads a pair of files. One of these that are in use is accepted even if it has
    /// expired meanwhile.
    ///
    /// # Errors
    /// Why the pair cannot be used at this time, as a sentence.
    pub(super) fn read(
        files: &CertificateFiles,
        in_use: &[Arc<Self>],
        now: SystemTime,
    ) -> Result<Self, String> {
        let (file, key) = (files.chain.display(), files.key.display());
        let chain = chain(&files.chain)?;
        let certified = CertifiedKey::new(chain, private_key(&files.key)?);
        let (names, [not_before, not_after]) = names_and_validity(&certified.cert[0])
            .ok_or_else(|| format!("{file} has a first certificate that is not valid X.509"))?;
        match certified.keys_match() {
            // Keys of files always tell their public part.
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(rustls::Error::InconsistentKeys(_)) => {
                return Err(format!(
                    "the key in {key} does not belong to the first certificate in {file}, which must be the server's own"
                ));
            }
            Err(other) => return Err(format!("{file} cannot be used: {other}")),
        }
        let is_in_use = in_use.iter().any(|one| one.key.cert == certified.cert);
        if !(not_before..=not_after).contains(&now) && !is_in_use {
            let [from, until] = [not_before, not_after].map(date);
            return Err(format!(
                "the certificate in {file} is not valid now, but from {from} until {until}"
            ));
        }
        Ok(Self {
            key: Arc::new(certified),
            names,
            not_after,
        })
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|one| one == name)
    }
}

/// All certificates of a file; there is at least one.
fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let file = path.display();
    let text = regular_file::read(path, MAX_BYTES)
        .map_err(|error| format!("cannot read {file}: {error}"))?;
    // The parser's own error may have bytes of a key, which may be in this file too.
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty());
    chain.ok_or_else(|| {
        format!(
            "{file} has no certificate, or malformed PEM; allowed are blocks that begin with a line -----BEGIN CERTIFICATE-----"
        )
    })
}

fn private_key(path: &Path) -> Result<Arc<dyn rustls::sign::SigningKey>, String> {
    let text = secrets::file("the key", path)?;
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).ok();
    let key = key.and_then(|key| any_supported_type(&key).ok());
    key.ok_or_else(|| {
        format!(
            "{} holds no private key that can be used; allowed is PEM without a passphrase, with PKCS#8 (BEGIN PRIVATE KEY), PKCS#1 (BEGIN RSA PRIVATE KEY) or SEC1 (BEGIN EC PRIVATE KEY): RSA with 2048 to 8192 bits, ECDSA with P-256, P-384 or P-521, or Ed25519",
            path.display()
        )
    })
}

/// The DNS names of a certificate, and when it begins and ends to be valid.
fn names_and_validity(certificate: &CertificateDer<'_>) -> Option<(Vec<String>, [SystemTime; 2])> {
    let (_, parsed) = parse_x509_certificate(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok()?;
    let names = names.map_or(&[][..], |names| &names.value.general_names);
    let dns_name = |name: &GeneralName<'_>| {
        let GeneralName::DNSName(name) = name else {
            return None;
        };
        Some(name.to_lowercase())
    };
    let validity = parsed.validity();
    let times = [validity.not_before, validity.not_after].map(|time| time.to_datetime().into());
    Some((names.iter().filter_map(dns_name).collect(), times))
}

/// A time as HTTP writes it.
pub(super) fn date(time: SystemTime) -> String {
    let value = http_date::value(time);
    value.to_str().unwrap_or_default().to_owned()
}

/// Which certificate a client gets: the one that has the name it asks for, or has a wildcard
/// for it; else the first one. Of several for the same name, it is the one that takes the
/// least CPU time, among those that a client with these signature schemes can check.
pub(super) fn choose(
    all: &[Arc<Certificate>],
    name: Option<&str>,
    schemes: &[SignatureScheme],
) -> Option<Arc<CertifiedKey>> {
    let first = all.first()?;
    let asked = name.unwrap_or_default().to_ascii_lowercase();
    // A wildcard stands for one label (RFC 9525 §6.3).
    let wildcard = asked.split_once('.');
    let wildcard = wildcard.map_or_else(String::new, |(_, parent)| format!("*.{parent}"));
    let mut names = [&asked, &wildcard].into_iter().chain(first.names.first());
    let name = names.find(|name| all.iter().any(|one| one.has(name)));
    let mut found: Vec<_> = match name {
        Some(name) => all.iter().filter(|one| one.has(name)).collect(),
        None => vec![first],
    };
    found.sort_by_key(|one| one.key.key.algorithm() == SignatureAlgorithm::RSA);
    let can_check = |one: &&Arc<Certificate>| one.key.key.choose_scheme(schemes).is_some();
    // With none that the client can check, the handshake fails with the reason.
    let chosen = found.iter().copied().find(can_check);
    chosen.or(found.first().copied()).map(|one| one.key.clone())
}
