//! Notices a reverse proxy that is not trusted, or that writes another field than the
//! configuration says: all of its clients would count as one.

use std::net::IpAddr;
use std::time::Duration;

use http::HeaderMap;
use http::header::FORWARDED;

use super::Gateway;
use crate::wire::X_FORWARDED_FOR;

/// The least time between two log lines.
const INTERVAL: Duration = Duration::from_hours(1);

impl Gateway {
    /// Logs, at most once an hour, that a trusted proxy, or a peer in the same network, reports
    /// a client and is not believed. `fields` are those of the first request of a connection from it.
    #[cold]
    #[inline(never)]
    pub(super) fn check_proxy(&self, peer: IpAddr, fields: &HeaderMap) {
        let trust = &self.clients.trust;
        let is_trusted = trust.contains(peer);
        let fields_here = [X_FORWARDED_FOR, FORWARDED].into_iter();
        let mut fields_here = fields_here.filter(|name| fields.contains_key(name));
        let Some(field) = fields_here.next() else {
            return;
        };
        let is_read = is_trusted && fields.contains_key(trust.field());
        let log = &self.meter().totals.untrusted_proxy;
        if is_read || !is_near(peer) && !is_trusted || !log.is_due(INTERVAL, self.clock.now()) {
            return;
        }
        let field = field.as_str();
        if is_trusted {
            tracing::warn!(
                %peer,
                field,
                "a trusted proxy reports its clients in another field than clients.proxy_field, so all of them count as one client; name the field that it writes there"
            );
        } else {
            tracing::warn!(
                %peer,
                field,
                "a reverse proxy reports its clients, but is not trusted, so all of them count as one client; if it is yours, add its address to clients.trusted_proxies"
            );
        }
    }
}

/// Whether an address is of this machine or of a private network, where a proxy of the
/// operator's own would be.
fn is_near(peer: IpAddr) -> bool {
    match peer.to_canonical() {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}
