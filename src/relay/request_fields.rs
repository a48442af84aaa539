//! The fields of a request on its way to the upstream.

use std::sync::Arc;

use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, RANGE, TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderMap, Method};

use super::sent::replace_forwarding;
use super::{Fetch, Relay};
use crate::cache::hop;
use crate::cache::policy::Mode;
use crate::cache::status::Forward;
use crate::cache::validator::{can_be_validated, make_conditional};
use crate::cache::variant::Variant;
use crate::route::{HeaderMode, Route};

/// The fields of a request to the upstream.
pub(super) struct RequestFields {
    pub(super) fields: HeaderMap,
    /// Whether they ask for a validation of stored responses.
    pub(super) validates: bool,
}

impl Fetch {
    /// The fields that go to the upstream. `unconditional` leaves out all
    /// conditions.
    pub(super) fn request_fields(
        &self,
        relay: &Relay,
        route: &Route,
        unconditional: bool,
        has_body: bool,
    ) -> RequestFields {
        let request = &self.request;
        let mut fields = match route.headers {
            HeaderMode::All => request.fields.clone(),
            HeaderMode::Typed => typed_fields(),
        };
        hop::strip(&mut fields);
        // hyper sends the upstream's own host, and answers 100-continue itself.
        fields.remove(HOST);
        fields.remove(EXPECT);
        if route.headers == HeaderMode::All {
            replace_forwarding(relay, route, request, &mut fields);
        }
        hop::add_via(&mut fields, request.version, &relay.pseudonym);
        if has_body && !fields.contains_key(CONTENT_LENGTH) {
            // Without it, hyper would send a GET without its body.
            let chunked = HeaderValue::from_static("chunked");
            fields.insert(TRANSFER_ENCODING, chunked);
        }
        let plain = |fields| RequestFields {
            fields,
            validates: false,
        };
        let safe = matches!(request.method, Method::GET | Method::HEAD);
        if route.cache.mode != Mode::Respect || !safe || has_body {
            return plain(fields);
        }
        if unconditional {
            return plain(without_conditions(fields));
        }
        let others = self.variants_to_validate(relay, route);
        let no_match = self.to_validate.is_none();
        let none_to_validate = others.is_empty() || self.why != Forward::VaryMiss;
        if no_match && (none_to_validate || has_conditions(&fields)) {
            // The client's own conditions go up.
            return plain(fields);
        }
        let chosen = self.validated().map(|chosen| &chosen.fields);
        let validates = make_conditional(&mut fields, chosen, others.iter().map(|v| &v.fields));
        RequestFields { fields, validates }
    }

    /// The selected stored response, if a 304 may be about it. Another, such as a
    /// stored error, is not validated but fetched again.
    pub(super) fn validated(&self) -> Option<&Arc<Variant>> {
        let chosen = self.to_validate.as_ref();
        chosen.filter(|chosen| can_be_validated(chosen.status))
    }

    /// The stored responses whose validators may go up: those that a 304 may be
    /// about, and whose request had the same `accept-encoding`, if they vary by it.
    /// Some origins (nginx) give all codings one ETag. They would confirm the plain
    /// response, and no client would get a compressed one any more.
    pub(super) fn variants_to_validate(&self, relay: &Relay, route: &Route) -> Vec<Arc<Variant>> {
        let sent = self.request.forwarded_fields(relay, route);
        let variants = relay.cache.variants(&self.request.key).unwrap_or_default();
        let same = |variant: &&Arc<Variant>| {
            let (nominated, secondary) = (&variant.nominated, &variant.secondary);
            can_be_validated(variant.status)
                && nominated.agrees_on(&ACCEPT_ENCODING, secondary, &sent)
        };
        variants.iter().filter(same).cloned().collect()
    }
}

/// What ordgate sends on a typed route, in place of the client's fields.
fn typed_fields() -> HeaderMap {
    const AGENT: &str = concat!("ordgate/", env!("CARGO_PKG_VERSION"));
    HeaderMap::from_iter([
        (ACCEPT, HeaderValue::from_static("application/json")),
        (ACCEPT_ENCODING, HeaderValue::from_static("identity")),
        (USER_AGENT, HeaderValue::from_static(AGENT)),
    ])
}

const CONDITIONS: [HeaderName; 2] = [IF_NONE_MATCH, IF_MODIFIED_SINCE];

/// Whether the answer depends on conditions, or on a range.
pub(super) fn has_conditions(fields: &HeaderMap) -> bool {
    CONDITIONS.iter().any(|name| fields.contains_key(name)) || fields.contains_key(RANGE)
}

fn without_conditions(mut fields: HeaderMap) -> HeaderMap {
    for name in CONDITIONS {
        fields.remove(name);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(names: &[&'static str]) -> HeaderMap {
        let value = HeaderValue::from_static("x");
        let names = names
            .iter()
            .map(|name| (HeaderName::from_static(name), value.clone()));
        names.collect()
    }

    #[test]
    fn conditions_and_ranges_make_an_answer_the_clients_own() {
        for (names, expected) in [
            (&["if-none-match"][..], true),
            (&["if-modified-since"], true),
            (&["range"], true),
            (&["if-match", "if-unmodified-since", "accept"], false),
            (&[], false),
        ] {
            assert_eq!(has_conditions(&fields(names)), expected, "{names:?}");
        }
    }

    #[test]
    fn an_unconditional_request_keeps_everything_else() {
        let request = fields(&["if-none-match", "if-modified-since", "range", "accept"]);
        assert_eq!(without_conditions(request), fields(&["range", "accept"]));
    }

    #[test]
    fn a_typed_request_asks_for_plain_json() {
        let fields = typed_fields();
        assert_eq!(fields[ACCEPT], "application/json");
        assert_eq!(fields[ACCEPT_ENCODING], "identity");
        assert_eq!(fields.len(), 3);
    }
}
