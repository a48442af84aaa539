//! A certificate authority of the test's own, and a server with a certificate of
//! it.

use std::sync::Arc;

use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio_rustls::TlsAcceptor;

/// An authority as PEM, and an acceptor with a certificate of it for
/// `localhost` and 127.0.0.1.
pub(crate) fn authority() -> (String, TlsAcceptor) {
    vouching(|_| {})
}

/// The same, where something about the server's certificate is otherwise.
pub(crate) fn vouching(change: impl Fn(&mut CertificateParams)) -> (String, TlsAcceptor) {
    let (issuer, certificate, key) = certified(change);
    (issuer.pem(), acceptor(&certificate, &key))
}

/// A server that demands a client certificate of this authority.
pub(crate) fn demanding(version: &'static SupportedProtocolVersion) -> (String, TlsAcceptor) {
    let (issuer, certificate, key) = certified(|_| {});
    let mut roots = RootCertStore::empty();
    roots.add(issuer.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_client_cert_verifier(verifier.unwrap())
        .with_single_cert(vec![certificate.der().clone()], private(&key))
        .unwrap();
    (issuer.pem(), TlsAcceptor::from(Arc::new(config)))
}

fn certified(
    change: impl Fn(&mut CertificateParams),
) -> (CertifiedIssuer<'static, KeyPair>, Certificate, KeyPair) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();

    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(names).unwrap();
    change(&mut params);
    let certificate = params.signed_by(&key, &issuer).unwrap();
    (issuer, certificate, key)
}

/// A server with a self-signed certificate.
pub(crate) fn self_signed() -> TlsAcceptor {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    acceptor(&params.self_signed(&key).unwrap(), &key)
}

fn acceptor(certificate: &Certificate, key: &KeyPair) -> TlsAcceptor {
    TlsAcceptor::from(Arc::new(config(certificate, key)))
}

fn config(certificate: &Certificate, key: &KeyPair) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private(key))
        .unwrap()
}

fn private(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()))
}
