//! A certificate with its private key: read from two files, and checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error as TlsError, InconsistentKeys};
use webpki::EndEntityCert;

use super::CertificateFiles;
use super::expiry::date;
use super::validity::validity;
use crate::regular_file::{self, FileError};
use crate::secrets::{self, Secret, SecretError};

/// The most bytes of a file of certificates.
const MAX_BYTES: u64 = 1 << 20;

/// SHA-256 of the contents of both files.
pub(super) type FilesDigest = [u8; SHA256_OUTPUT_LEN];

/// A certificate that has been checked.
pub(super) struct Certificate {
    /// For handshakes.
    pub(super) key: Arc<CertifiedKey>,
    /// The DNS names in it, in lower case.
    pub(super) names: Vec<Box<str>>,
    /// Until when it is valid.
    pub(super) not_after: SystemTime,
    /// Of the files that it was read from; zeroes if it was made here.
    pub(super) digest: FilesDigest,
}

/// Why a pair of files is refused.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The file of certificates cannot be read.
    #[error("cannot read {file}: {error}")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        error: FileError,
    },
    /// The file of the key cannot be read.
    #[error(transparent)]
    Key(#[from] SecretError),
    /// There is something else in the file.
    #[error("{file} {why}")]
    Unusable {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The key is another certificate's.
    #[error("the key in {key} does not belong to the {first}certificate in {chain}{hint}")]
    Mismatch {
        /// The file of certificates.
        chain: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// `first `, if there are several certificates.
        first: &'static str,
        /// What to do about it.
        hint: &'static str,
    },
    /// The certificate is not valid any more.
    #[error("the certificate in {file} has expired: it was valid until {until}")]
    Expired {
        /// The file.
        file: PathBuf,
        /// The end of its validity, as an HTTP date.
        until: String,
    },
    /// The certificate is not valid yet.
    #[error("the certificate in {file} is not valid before {from}")]
    NotYetValid {
        /// The file.
        file: PathBuf,
        /// The beginning of its validity, as an HTTP date.
        from: String,
    },
}

impl CertificateError {
    /// The message, with the key of the configuration that names the files.
    pub(super) fn located(&self) -> String {
        format!("listener.tls.certificates: {self}")
    }
}

/// What two files contain.
pub(super) struct FileContents {
    chain: Vec<u8>,
    key: Secret,
}

impl FileContents {
    pub(super) fn read(files: &CertificateFiles) -> Result<Self, CertificateError> {
        let chain = regular_file::read(&files.chain, MAX_BYTES).map_err(|error| {
            CertificateError::Unreadable {
                file: files.chain.clone(),
                error,
            }
        })?;
        let key = secrets::file("the key", &files.key)?;
        Ok(Self { chain, key })
    }

    pub(super) fn digest(&self) -> FilesDigest {
        let mut digest = Context::new(&SHA256);
        // With its length, so that no bytes can move from one file to the other.
        digest.update(&self.chain.len().to_be_bytes());
        digest.update(&self.chain);
        digest.update(self.key.as_bytes());
        let mut bytes = FilesDigest::default();
        bytes.copy_from_slice(digest.finish().as_ref());
        bytes
    }

    /// The certificate, if it can be used at this time.
    pub(super) fn certificate(
        &self,
        files: &CertificateFiles,
        now: SystemTime,
    ) -> Result<Certificate, CertificateError> {
        let chain = self.chain(&files.chain)?;
        let key = any_supported_type(&self.private_key(&files.key)?).map_err(|_unsupported| {
            unusable(
                &files.key,
                "has a key that cannot be used; allowed are RSA with 2048 to 8192 bits, ECDSA with P-256, P-384 or P-521, and Ed25519",
            )
        })?;
        let certified = CertifiedKey::new(chain, key);
        let (names, (not_before, not_after)) = {
            let no_certificate = |why: &dyn std::fmt::Display| {
                let why =
                    format!("has a first certificate that is not valid X.509 version 3: {why}");
                unusable(&files.chain, why)
            };
            let first = &certified.cert[0];
            let parsed = EndEntityCert::try_from(first).map_err(|error| no_certificate(&error))?;
            let names = parsed
                .valid_dns_names()
                .map(|name| name.to_lowercase().into());
            let valid =
                validity(first).ok_or_else(|| no_certificate(&"its dates are malformed"))?;
            (names.collect(), valid)
        };
        match certified.keys_match() {
            // Keys of files always tell their public part.
            Ok(()) | Err(TlsError::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(TlsError::InconsistentKeys(_)) => return Err(mismatch(files, &certified)),
            Err(other) => return Err(unusable(&files.chain, format!("cannot be used: {other}"))),
        }
        if now > not_after {
            return Err(CertificateError::Expired {
                file: files.chain.clone(),
                until: date(not_after),
            });
        }
        if now < not_before {
            return Err(CertificateError::NotYetValid {
                file: files.chain.clone(),
                from: date(not_before),
            });
        }
        Ok(Certificate {
            key: Arc::new(certified),
            names,
            not_after,
            digest: self.digest(),
        })
    }

    /// All certificates; there is at least one.
    fn chain(&self, file: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
        // Some editors put a byte order mark before the first line.
        let text = self.chain.strip_prefix(b"\xef\xbb\xbf");
        let text = text.unwrap_or(&self.chain);
        let chain = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
        match chain {
            Ok(chain) if chain.is_empty() => Err(unusable(
                file,
                "holds no certificate; allowed is PEM (-----BEGIN CERTIFICATE-----)",
            )),
            Ok(chain) => Ok(chain),
            Err(error) => Err(not_pem(file, &error)),
        }
    }

    fn private_key(&self, file: &Path) -> Result<PrivateKeyDer<'static>, CertificateError> {
        // PKCS#8 says it in the label, the older formats in a header.
        if self.key.contains("BEGIN ENCRYPTED PRIVATE KEY") || self.key.contains("4,ENCRYPTED") {
            return Err(unusable(
                file,
                "has an encrypted key; allowed is one without a passphrase (openssl pkey -in ... -out ...)",
            ));
        }
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes());
        key.map_err(|error| match matches!(error, pem::Error::NoItemsFound) {
            true => unusable(
                file,
                "holds no private key; allowed is PEM with PKCS#8 (BEGIN PRIVATE KEY), PKCS#1 (BEGIN RSA PRIVATE KEY) or SEC1 (BEGIN EC PRIVATE KEY)",
            ),
            false => not_pem(file, &error),
        })
    }
}

fn unusable(file: &Path, why: impl Into<String>) -> CertificateError {
    CertificateError::Unusable {
        file: file.to_owned(),
        why: why.into(),
    }
}

/// The text of the error itself may have bytes of a key, which may also be in the file of
/// the certificates.
fn not_pem(file: &Path, error: &pem::Error) -> CertificateError {
    let why = if matches!(error, pem::Error::MissingSectionEnd { .. }) {
        "a part of it has no line -----END ...-----"
    } else if matches!(error, pem::Error::IllegalSectionStart { .. }) {
        "a line that begins with -----BEGIN is malformed"
    } else {
        "the base64 in it is malformed"
    };
    unusable(file, format!("is not valid PEM: {why}"))
}

/// The key may belong to a certificate that is not the first.
fn mismatch(files: &CertificateFiles, certified: &CertifiedKey) -> CertificateError {
    let later = certified.cert.iter().skip(1);
    let is_later = |certificate: &CertificateDer<'static>| {
        let alone = CertifiedKey::new(vec![certificate.clone()], certified.key.clone());
        alone.keys_match().is_ok()
    };
    CertificateError::Mismatch {
        chain: files.chain.clone(),
        key: files.key.clone(),
        first: if certified.cert.len() > 1 {
            "first "
        } else {
            ""
        },
        hint: match later.into_iter().any(is_later) {
            true => ", but to a later one: the server's own certificate must come first",
            false => "",
        },
    }
}
