//! Which certificate a client gets: the one that has the name it asks for, or has a
//! wildcard for it; else the first one.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{SignatureAlgorithm, SignatureScheme};

use super::certificate::Certificate;

/// The certificates of a listener; they may be replaced while it is in use.
pub(super) struct CertificateResolver(ArcSwap<CertificateTable>);

/// Certificates by name.
struct CertificateTable {
    certificates: Vec<Arc<Certificate>>,
    /// The keys by name, in lower case, those without RSA first: they take the least
    /// CPU time. A wildcard is there with its `*.`.
    by_name: HashMap<Box<str>, Vec<Arc<CertifiedKey>>>,
    /// The keys of the first certificate, and of others for the same name.
    default: Vec<Arc<CertifiedKey>>,
}

impl CertificateResolver {
    pub(super) fn new(certificates: Vec<Arc<Certificate>>) -> Self {
        Self(ArcSwap::from_pointee(CertificateTable::new(certificates)))
    }

    pub(super) fn replace(&self, certificates: Vec<Arc<Certificate>>) {
        self.0.store(Arc::new(CertificateTable::new(certificates)));
    }

    pub(super) fn certificates(&self) -> Vec<Arc<Certificate>> {
        self.0.load().certificates.clone()
    }
}

impl CertificateTable {
    fn new(certificates: Vec<Arc<Certificate>>) -> Self {
        let mut by_name: HashMap<Box<str>, Vec<Arc<CertifiedKey>>> = HashMap::new();
        for certificate in &certificates {
            for name in &certificate.names {
                let keys = by_name.entry(name.clone()).or_default();
                keys.push(certificate.key.clone());
            }
        }
        for keys in by_name.values_mut() {
            keys.sort_by_key(|key| key.key.algorithm() == SignatureAlgorithm::RSA);
        }
        let default = certificates.first().map_or_else(Vec::new, |first| {
            let same_name = first.names.first().and_then(|name| by_name.get(name));
            same_name
                .cloned()
                .unwrap_or_else(|| vec![first.key.clone()])
        });
        Self {
            certificates,
            by_name,
            default,
        }
    }

    /// The key for a server name, or without one, that a client with these signature
    /// schemes can check.
    fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let keys = name.and_then(|name| {
            let name = name.to_ascii_lowercase();
            let wildcard = || {
                // A wildcard stands for one label (RFC 9525 §6.3).
                let (_label, parent) = name.split_once('.')?;
                self.by_name.get(&*format!("*.{parent}"))
            };
            self.by_name.get(&*name).or_else(wildcard)
        });
        let keys = keys.unwrap_or(&self.default);
        let mut usable = keys.iter();
        let usable = usable.find(|key| key.key.choose_scheme(schemes).is_some());
        // With none that the client can check, the handshake fails with the reason.
        usable.or(keys.first()).cloned()
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let table = self.0.load();
        table.choose(hello.server_name(), hello.signature_schemes())
    }
}

impl std::fmt::Debug for CertificateResolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let table = self.0.load();
        f.debug_list().entries(table.by_name.keys()).finish()
    }
}

#[cfg(test)]
mod tests;
