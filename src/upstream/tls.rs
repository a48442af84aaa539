//! TLS towards the upstream: rustls on aws-lc-rs, with the public certificate
//! authorities of webpki-roots and those that the operator adds.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};

use crate::regular_file::{self, MAX_AUTHORITIES};
use crate::upstream::Settings;

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// `ca_file` cannot be read.
    #[error("{key} {path}: {error}; a PEM file of certificates is allowed", path = path.display())]
    File {
        /// The configuration key that names it.
        key: String,
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        error: pem::Error,
    },
    /// `ca_file` has no usable certificate.
    #[error("{key} {path}: it holds no certificate that can be used", path = path.display())]
    Empty {
        /// The configuration key that names it.
        key: String,
        /// The file.
        path: PathBuf,
    },
    /// rustls rejects the configuration.
    #[error("TLS: {0}")]
    Rustls(#[from] rustls::Error),
}

impl TlsError {
    /// The configuration key that names the file, if a file is wrong.
    pub(crate) fn key(&self) -> Option<&str> {
        match self {
            Self::File { key, .. } | Self::Empty { key, .. } => Some(key),
            Self::Rustls(_) => None,
        }
    }
}

/// The client configuration of an upstream.
///
/// # Errors
/// If `ca_file` cannot be read or has no usable certificate.
pub(crate) fn config(settings: &Settings) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    if let Some(path) = &settings.connections.ca_file {
        let key = || settings.key("ca_file");
        let failed = |error| TlsError::File {
            key: key(),
            path: path.to_owned(),
            error,
        };
        let text = regular_file::read(path, MAX_AUTHORITIES);
        let text = text.map_err(|error| failed(pem::Error::Io(error.into())))?;
        let certificates = CertificateDer::pem_slice_iter(&text)
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
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
