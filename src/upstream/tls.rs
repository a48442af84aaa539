//! TLS towards the upstream: rustls on aws-lc-rs, with the public certificate
//! authorities of webpki-roots and those that the operator adds.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};

use crate::regular_file::{self, MAX_AUTHORITIES};
use crate::upstream::{Settings, SetupError};

/// The client configuration of an upstream.
///
/// # Errors
/// If `ca_file` cannot be read or has no usable certificate.
pub(crate) fn config(settings: &Settings) -> Result<ClientConfig, SetupError> {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    if let Some(path) = &settings.ca_file {
        let wrong = |why| SetupError::CaFile {
            key: settings.key("ca_file"),
            path: path.to_owned(),
            why,
        };
        let unreadable =
            |error: pem::Error| wrong(format!("{error}; a PEM file of certificates is allowed"));
        let text = regular_file::read(path, MAX_AUTHORITIES);
        let text =
            text.map_err(|error| unreadable(pem::Error::Io(std::io::Error::other(error))))?;
        let certificates = CertificateDer::pem_slice_iter(&text);
        let certificates = certificates.collect::<Result<Vec<_>, _>>();
        let (added, _ignored) = roots.add_parsable_certificates(certificates.map_err(unreadable)?);
        if added == 0 {
            return Err(wrong("it holds no certificate that can be used".to_owned()));
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
