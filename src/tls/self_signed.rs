//! A self-signed certificate for the sandbox, which no client trusts by itself.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, OtherError};

use super::certificate::{Certificate, FilesDigest};

/// How long it is valid.
const VALID: Duration = Duration::from_hours(365 * 24);
const NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// A new key, and a certificate of it for this machine's loopback names.
pub(super) fn certificate(
    provider: &CryptoProvider,
    now: SystemTime,
) -> Result<Certificate, Error> {
    let failed = |error: rcgen::Error| Error::Other(OtherError(Arc::new(error)));
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = CertificateParams::new(NAMES.map(str::to_owned)).map_err(failed)?;
    params.not_before = now.into();
    params.not_after = (now + VALID).into();
    let certificate = params.self_signed(&key).map_err(failed)?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = CertifiedKey::from_der(vec![certificate.der().clone()], key, provider)?;
    Ok(Certificate {
        key: Arc::new(key),
        names: vec!["localhost".into()],
        not_after: now + VALID,
        digest: FilesDigest::default(),
    })
}
