//! Metrics of TLS towards clients.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use super::{Cells, Metrics, by, labels};
use crate::gateway::Gateway;
use crate::listener::BoundListener;
use crate::meter::TlsCounts;
use crate::tls::CertificateStatus;

pub(super) fn encode(
    gateway: &Gateway,
    listeners: &[BoundListener],
    to: &mut Metrics<'_>,
) -> fmt::Result {
    let counts = &gateway.meter().totals.tls;
    to.counter(
        "ordgate_tls_handshakes",
        "TLS handshakes by version and result: with a new session or a resumed one, or, without a version, why the connection was closed",
        handshakes(counts),
    )?;
    to.counter(
        "ordgate_tls_certificate_changes",
        "Changed files of certificates: in use now, or refused",
        by(
            "result",
            [
                ("replaced", counts.certificates_replaced.load(Relaxed)),
                ("refused", counts.certificates_refused.load(Relaxed)),
            ],
        ),
    )?;
    to.gauge(
        "ordgate_tls_certificate_days",
        "Whole days until a certificate expires; negative afterwards",
        by_certificate(listeners, |certificate| certificate.days as f64),
    )?;
    to.gauge(
        "ordgate_tls_certificate_refused",
        "Whether the files of a certificate have changed and were refused, so that the previous one is in use",
        by_certificate(listeners, |certificate| {
            f64::from(u8::from(certificate.refused.is_some()))
        }),
    )
}

fn handshakes(counts: &TlsCounts) -> Cells<u64> {
    let mut cells = Cells::new();
    for (version, counts) in TlsCounts::VERSIONS.iter().zip(&counts.succeeded) {
        for (result, count) in ["new", "resumed"].iter().zip(counts) {
            let labels = labels(&[("version", version), ("result", result)]);
            cells.push((labels, count.load(Relaxed)));
        }
    }
    for (result, count) in [
        ("failed", &counts.failed),
        ("closed", &counts.closed),
        ("too-slow", &counts.too_slow),
        ("over-limit", &counts.over_limit),
        ("over-client-limit", &counts.over_client_limit),
    ] {
        let labels = labels(&[("version", "none"), ("result", result)]);
        cells.push((labels, count.load(Relaxed)));
    }
    cells
}

/// A cell for each certificate of each listener.
fn by_certificate(
    listeners: &[BoundListener],
    value: impl Fn(&CertificateStatus) -> f64,
) -> Cells<f64> {
    let cell = |listener: &BoundListener, certificate: &CertificateStatus| {
        let address = listener.address.to_string();
        let chain = certificate.chain.as_ref();
        let chain = chain.map_or_else(
            || "self-signed".to_owned(),
            |chain| chain.display().to_string(),
        );
        let labels = labels(&[("listener", &address), ("chain", &chain)]);
        (labels, value(certificate))
    };
    let mut cells = Cells::new();
    for listener in listeners {
        for certificate in &listener.certificates {
            let cell = cell(listener, certificate);
            // A pair that is configured twice is one series.
            if cells.iter().all(|(labels, _)| *labels != cell.0) {
                cells.push(cell);
            }
        }
    }
    cells
}
