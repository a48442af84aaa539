//! How answers change responses that are already stored on plain routes: a 304 freshens
//! them (RFC 9111 §4.3.4), an answer to HEAD makes them stale (§4.3.5), and an unsafe method
//! invalidates them (§4.4).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::{AUTHORIZATION, SET_COOKIE};
use http::{HeaderMap, Method, StatusCode};

use super::exchange::Fetched;
use super::fields::is_overridden;
use super::store::Times;
use super::{Answer, AnswerSource, Fetch, FillAnswer};
use crate::cache::directives::Directives;
use crate::cache::freshen::{freshen, names};
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::cache::storable::is_for_everyone;
use crate::cache::{OriginFields, StoredFields, StoredResponse, invalidate};
use crate::route::HeaderMode;

impl Fetch {
    /// Applies a 304 to ordgate's own validation: freshens the stored response if the 304
    /// names it, and answers from it. `None` where it was purged meanwhile.
    pub(super) fn apply_not_modified(&self, head: &HeaderMap, times: Times) -> Option<Fetched> {
        let (chosen, store) = (self.validated()?, self.fill.cache.store());
        let origin = chosen.origin()?;
        if store.response_was_purged(self.key().as_bytes(), chosen) {
            return None;
        }
        let mut stored = chosen.clone();
        let mut is_stored = false;
        let is_named = names(head, &origin.map);
        if is_named {
            let received = self.fill.clock.wall(times.received);
            let update = &update(head, received);
            (stored, is_stored) = self.replace(chosen, origin, update, times);
        }
        let all = match is_stored || !is_named {
            true => self.shared(&stored),
            false => None,
        };
        let from = AnswerSource::Validated { stored: is_stored };
        Some(Fetched::new(
            Ok(Answer::Stored(FillAnswer { stored, from })),
            all,
        ))
    }

    /// Replaces a stored response by a freshened one. Returns that, and whether it may be
    /// stored.
    fn replace(
        &self,
        old: &Arc<StoredResponse>,
        origin: &OriginFields,
        update: &HeaderMap,
        times: Times,
    ) -> (Arc<StoredResponse>, bool) {
        let mut fields = origin.map.clone();
        freshen(&mut fields, update);
        let new = StoredResponse {
            encodings: old.encodings.clone(),
            ..self.prepare(old.status, &fields, old.body.clone(), times)
        };
        let may_store =
            |request: &HeaderMap| self.may_store(&Method::GET, request, old.status, &fields, times);
        let is_stored = may_store(&self.request.fields);
        // If only this request forbids storing, the stored response stays.
        let stays = !is_stored && may_store(&HeaderMap::new());
        let new = Arc::new(new);
        self.fill.cache.store().amend(self.key(), |variants| {
            if stays {
                return;
            }
            variants.retain(|stored| !Arc::ptr_eq(stored, old));
            if is_stored {
                variants.push(new.clone());
            }
        });
        (new, is_stored)
    }

    /// Applies an answer to stored responses of other requests.
    pub(super) fn update_others(&self, status: StatusCode, fields: &HeaderMap) {
        self.invalidate(status, fields);
        let is_head = self.request.method == Method::HEAD && status == StatusCode::OK;
        if is_head && self.route().cache.mode == Mode::Respect {
            self.invalidate_by_head();
        }
    }

    /// Removes what an unsafe method invalidates (§4.4), on all routes to the
    /// same origin that obey its fields.
    fn invalidate(&self, status: StatusCode, fields: &HeaderMap) {
        let fill = &self.fill;
        let origin = fill.upstreams.get(self.route().upstream.number);
        let Ok(target) = origin.uri(self.key().target()) else {
            return;
        };
        for target in invalidate::targets(&self.request.method, &target, status, fields) {
            for other in fill.routes.routes() {
                let upstream = fill.upstreams.get(other.upstream.number);
                let own = upstream.target_of(&target);
                if upstream.shares_origin_with(origin) && other.cache.mode == Mode::Respect {
                    fill.cache.store().invalidate(&Key::of(other.number, own));
                }
            }
        }
    }

    /// Makes the stored responses stale that match a HEAD which the upstream has answered
    /// (§4.3.5): they may have changed.
    fn invalidate_by_head(&self) {
        let request = &self.request.fields;
        // An answer for this client alone does not concern the responses of others.
        let is_private = Directives::of_request(request).no_store
            || request.contains_key(AUTHORIZATION)
            || is_overridden(request);
        if is_private && self.route().headers == HeaderMode::All {
            return;
        }
        let sent = self.sent();
        self.fill.cache.store().amend(self.key(), |variants| {
            let is_same = |stored: &&mut Arc<StoredResponse>| stored.answers(|| &sent);
            for stored in variants.iter_mut().filter(is_same) {
                let mut stale = (**stored).clone();
                if let StoredFields::Origin(origin) = &mut stale.fields {
                    origin.reuse.lifetime = Duration::ZERO;
                }
                *stored = Arc::new(stale);
            }
        });
    }
}

/// The fields by which a 304 updates a stored response.
/// Its cookies are for the one client whose request it answers, unless it says
/// itself that it is for everyone. The freshness of the stored response says
/// nothing about them.
fn update<'h>(fields: &'h HeaderMap, received: SystemTime) -> Cow<'h, HeaderMap> {
    if !fields.contains_key(SET_COOKIE)
        || is_for_everyone(fields, &Directives::governing(fields), received)
    {
        return Cow::Borrowed(fields);
    }
    let mut without = fields.clone();
    without.remove(SET_COOKIE);
    Cow::Owned(without)
}
