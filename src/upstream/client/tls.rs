//! How the upstream's TLS is set up: rustls on ring, the public authorities of
//! webpki-roots, and those that the operator adds.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::upstream::Settings;
use crate::upstream::client::connector::NoClientCertificate;

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file of authorities cannot be read.
    #[error("{key} {path}: {error}; a PEM file of certificates is allowed", path = path.display())]
    File {
        /// The key of the configuration that names it.
        key: String,
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        error: rustls::pki_types::pem::Error,
    },
    /// The file has no certificate, or one that is not to be used.
    #[error("{key} {path}: it holds no certificate that can be used", path = path.display())]
    Empty {
        /// The key of the configuration that names it.
        key: String,
        /// Which file.
        path: PathBuf,
    },
    /// rustls refuses its own defaults.
    #[error("TLS: {0}")]
    Rustls(#[from] rustls::Error),
}

/// The client's side of TLS of an upstream.
///
/// # Errors
/// Where the file of authorities is no use.
pub(crate) fn config(settings: &Settings) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    if let Some(path) = &settings.ca_file {
        let key = || settings.key("ca_file");
        let failed = |error| TlsError::File {
            key: key(),
            path: path.to_owned(),
            error,
        };
        let certificates = CertificateDer::pem_file_iter(path).map_err(failed)?;
        let certificates = certificates
            .collect::<Result<Vec<_>, _>>()
            .map_err(failed)?;
        let (added, _ignored) = roots.add_parsable_certificates(certificates);
        if added == 0 {
            return Err(TlsError::Empty {
                key: key(),
                path: path.to_owned(),
            });
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_cert_resolver(Arc::new(NoClientCertificate)))
}
