//! Which client a request counts against, and what that client may do.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::HeaderMap;
use http::header::{FORWARDED, ORIGIN};

use super::Gateway;
use crate::client_tokens::{ClientTokens, TokenClient};
use crate::clock::{Clock, Moment};
use crate::identify::{Client, ClientLabel, TrustedProxies};
use crate::limit::{Limit, RequestAllowance};
use crate::reason::Reason;
use crate::refusal::Refusal;
use crate::wire::{X_FORWARDED_FOR, origin};

/// Identifies clients and holds them to their limits.
pub(crate) struct ClientPolicy {
    /// Which proxies are believed about a client's address.
    pub(crate) trust: TrustedProxies,
    /// The limits; `None` where there are none.
    pub(crate) limit: Option<Limit>,
    /// The clients with tokens.
    pub(crate) tokens: ClientTokens,
}

/// The client that a request counts against, and by what it is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdentifiedClient {
    pub(super) client: Client,
    pub(super) credentials: Credentials,
}

/// The client token of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Credentials {
    /// There is none; the client is an address.
    Absent,
    /// A valid one, of the client at this place.
    Valid(u32),
    /// One that is not valid. The request counts against its address.
    Invalid(Reason),
    /// A valid one that is for pages of other origins. The request counts against its
    /// address: otherwise any page could use up what its owner may send.
    OtherOrigin,
}

impl ClientPolicy {
    /// The client that a request counts against. A client token is removed from the
    /// fields.
    #[inline]
    pub(super) fn identify(
        &self,
        peer: IpAddr,
        fields: &mut HeaderMap,
        clock: &Clock,
    ) -> IdentifiedClient {
        let mut credentials = Credentials::Absent;
        if self.tokens.is_enabled
            && let Some(found) = self.tokens.take(fields, || clock.wall_now())
        {
            credentials = match found {
                Ok((at, client)) if is_for_origin(client, fields) => {
                    return IdentifiedClient {
                        client: Client::Token(client.number),
                        credentials: Credentials::Valid(at),
                    };
                }
                Ok(_) => Credentials::OtherOrigin,
                Err(reason) => Credentials::Invalid(reason),
            };
        }
        IdentifiedClient {
            client: self.trust.client(peer, fields),
            credentials,
        }
    }

    /// Counts a request. One with an invalid token counts against its address, so that
    /// guessing is limited.
    #[inline]
    pub(super) fn admit(
        &self,
        from: &IdentifiedClient,
        now: Moment,
    ) -> Result<Option<RequestAllowance>, Refusal> {
        let token = self.token_client(from);
        let own = token.and_then(|token| token.rate.as_deref());
        let all = self.limit.as_ref().map(|limit| &*limit.requests);
        let admitted = own.or(all).map(|rate| rate.admit(from.client, now));
        if let Some(token) = token {
            let is_admitted = !matches!(admitted, Some(Err(_)));
            token.requests[usize::from(is_admitted)].fetch_add(1, Relaxed);
        }
        let too_many = |too_many| Refusal::too_many(Reason::Limited, too_many);
        admitted.transpose().map_err(too_many)
    }

    /// Refuses an invalid token, and one that is for pages of other origins.
    #[inline]
    pub(super) fn check_token(&self, from: &IdentifiedClient) -> Result<(), Refusal> {
        match from.credentials {
            Credentials::Absent | Credentials::Valid(_) => Ok(()),
            Credentials::Invalid(reason) => Err(reason.into()),
            Credentials::OtherOrigin => Err(Reason::TokenOrigin.into()),
        }
    }

    /// Refuses a request without a token where one is required.
    #[inline]
    pub(super) fn require_token(&self, from: &IdentifiedClient) -> Result<(), Refusal> {
        match self.tokens.is_required && from.credentials == Credentials::Absent {
            true => Err(Reason::NoToken.into()),
            false => Ok(()),
        }
    }

    /// The client that a valid token belongs to.
    #[inline]
    pub(super) fn token_client(&self, from: &IdentifiedClient) -> Option<&TokenClient> {
        match from.credentials {
            Credentials::Valid(at) => self.tokens.get(at),
            Credentials::Absent | Credentials::Invalid(_) | Credentials::OtherOrigin => None,
        }
    }

    /// A client as it is shown, with its name if the token file has it.
    pub(crate) fn label(&self, client: Client) -> ClientLabel<'_> {
        let known = match client {
            Client::Token(number) => {
                let mut all = self.tokens.clients.iter();
                all.find(|client| client.number == number)
            }
            Client::V4(_) | Client::V6(_) => None,
        };
        ClientLabel {
            client,
            name: known.map(|known| &*known.name),
        }
    }

    /// Counts a request that goes to the upstream against its client's limit on
    /// misses. One that joins the fetch of another does not count.
    pub(super) fn admit_miss(
        &self,
        client: Client,
        joins: bool,
        now: Moment,
    ) -> Result<(), Refusal> {
        match &self.limit {
            Some(limit) if !joins => limit
                .admit_miss(client, now)
                .map_err(|too_many| Refusal::too_many(Reason::LimitedMisses, too_many)),
            Some(_) | None => Ok(()),
        }
    }

    /// Corrects what [`admit_miss`](Self::admit_miss) has counted, once it is
    /// known whether the request has reached the upstream.
    pub(super) fn correct_miss(&self, client: Client, counted: bool, sent: bool, now: Moment) {
        match (&self.limit, counted, sent) {
            // The upstream has answered already: if this is over the limit, the
            // next request is refused.
            (Some(limit), false, true) => drop(limit.admit_miss(client, now)),
            (Some(limit), true, false) => limit.refund_miss(client),
            (Some(_), true, true) | (Some(_), false, false) | (None, ..) => {}
        }
    }

    /// Counts a request over the limit on misses: answered with a stale response,
    /// or refused.
    pub(super) fn count_limited(&self, is_stale: bool) {
        if let Some(limit) = &self.limit {
            limit.refused[usize::from(is_stale)].fetch_add(1, Relaxed);
        }
    }
}

/// Whether a client's tokens are for the page that sends a request. A request without `origin`
/// is not a page's, or is a page's to its own origin.
#[inline]
fn is_for_origin(client: &TokenClient, fields: &HeaderMap) -> bool {
    let mut origins = fields.get_all(ORIGIN).iter();
    let allowed = client.origins.as_deref();
    allowed.is_none_or(|allowed| origins.all(|origin| origin::is_among(allowed, origin)))
}

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
