//! Reading a value, and making a stored response of it.
//!
//! A value is used if it was stored for the same meaning of its route, if nothing has
//! purged it, and if its age is known. Then it is in memory again, unless it names blocks
//! that are not known to stand.

use std::sync::Arc;

use http::StatusCode;

use super::counts::count;
use super::purge_log::Checked;
use super::reads::Loaded;
use super::time::DiskTime;
use super::{Disk, RouteMeaning};
use crate::cache::encodings::Encodings;
use crate::cache::key::Key;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::cache::policy::Mode;
use crate::cache::purge::PurgeSubject;
use crate::cache::sequence::{CheckedSequence, PurgeSequence};
use crate::cache::store::Promoted;
use crate::cache::variant::Variant;
use crate::cache::{Attached, StoredResponse};
use crate::chain::ChainStamp;
use crate::chain::finality::Class;
use crate::chain::ledger::NO_EPOCH;
use crate::pages::Page;
use crate::portable::codec::{Kept, KeptResponse, KeptStamp, decode_head, decode_rest};
use crate::portable::variants::KeptVariant;

/// Why a value is not used.
enum Unusable {
    /// It has another form, or is of another route.
    Foreign,
    /// It was purged or replaced, or its age is unknown.
    Outdated,
}

impl Disk {
    /// Reads what is kept for a key, and puts it into memory if it may be used.
    pub(super) fn read(&self, key: &Key) -> Loaded {
        let Some(route) = self.routes.get(&key.route()) else {
            return Loaded::Absent;
        };
        let counts = &self.tier.counts;
        let own = route.digest.key_of(key.target());
        // Before the purge log is read: what is purged later, memory sees.
        let now = self.cache.store().sequence();
        if let Some(loaded) = self.in_memory(*route, key, now) {
            return loaded;
        }
        let value = match self.tier.engine.get(&own) {
            Ok(value) => value,
            Err(error) => {
                count(&counts.errors);
                let what = "stored responses cannot be read from disk";
                self.tier.reading.fail(what, &error);
                return Loaded::Absent;
            }
        };
        self.tier.reading.succeed();
        let Some(value) = value.filter(|_| !self.tier.is_replaced(&own)) else {
            count(&counts.misses);
            return Loaded::Absent;
        };
        let (loaded, counter) = match self.restore(*route, (key, &own), &value, now) {
            Ok(loaded @ Loaded::Response { stands: false, .. }) => (loaded, &counts.unchecked),
            Ok(loaded) => (loaded, &counts.hits),
            Err(Unusable::Foreign) => (Loaded::Absent, &counts.discarded),
            Err(Unusable::Outdated) => (Loaded::Absent, &counts.outdated),
        };
        count(counter);
        loaded
    }

    /// What memory has for a key since it was looked up there: another read may have just
    /// ended.
    fn in_memory(&self, route: RouteMeaning, key: &Key, now: PurgeSequence) -> Option<Loaded> {
        let store = self.cache.store();
        match route.mode {
            Mode::Respect => store.variants(key).map(|_| Loaded::Variants),
            Mode::Off | Mode::Override | Mode::Chain => {
                let stored = store.get(key)?;
                Some(Loaded::Response {
                    stored,
                    stands: true,
                    checked: now,
                })
            }
        }
    }

    fn restore(
        &self,
        route: RouteMeaning,
        (key, own): (&Key, &[u8; 16]),
        value: &[u8],
        now: PurgeSequence,
    ) -> Result<Loaded, Unusable> {
        let (head, rest) = decode_head::<Checked>(value).ok_or(Unusable::Foreign)?;
        if head.route != route.digest || head.target != key.target() {
            return Err(Unusable::Foreign);
        }
        if !self.tier.log.may_hold(head.checked, own) {
            return Err(Unusable::Outdated);
        }
        let time = self.tier.clock.now();
        match decode_rest(rest).ok_or(Unusable::Foreign)? {
            Kept::One(kept) => {
                let (stored, stands) = match kept.stamp {
                    Some(stamp) => self.chain_response(route, *kept, stamp, now, time),
                    None => (self.timed_response(route, *kept, now, time)).map(|one| (one, true)),
                }
                .ok_or(Unusable::Outdated)?;
                let subject = stored.purge_subject(key.as_bytes());
                let holds = self.holds(route, head.checked, key, subject);
                let read = holds.then(|| Promoted::One(Arc::new(stored)));
                let usable = match stands {
                    true => read.and_then(|read| self.promote(key, read, now)),
                    false => read,
                };
                let Some(Promoted::One(stored)) = usable else {
                    return Err(Unusable::Outdated);
                };
                Ok(Loaded::Response {
                    stored,
                    stands,
                    checked: now,
                })
            }
            Kept::Variants(kept) => {
                let variants = self.variants(route, kept, time).ok_or(Unusable::Outdated)?;
                let subject = PurgeSubject {
                    key: key.as_bytes(),
                    blocks: None,
                    bodies: variants.iter().map(|variant| &*variant.body).collect(),
                };
                let holds = self.holds(route, head.checked, key, subject);
                let read = Promoted::Variants(variants.into());
                let usable = holds.then(|| self.promote(key, read, now)).flatten();
                usable.map(|_| Loaded::Variants).ok_or(Unusable::Outdated)
            }
        }
    }

    fn holds(
        &self,
        route: RouteMeaning,
        checked: Checked,
        key: &Key,
        subject: PurgeSubject<'_>,
    ) -> bool {
        let names = (route.digest, route.tip_digest);
        self.tier.log.holds(checked, names, key.target(), subject)
    }

    fn promote(
        &self,
        key: &Key,
        promoted: Promoted<Attached>,
        now: PurgeSequence,
    ) -> Option<Promoted<Attached>> {
        self.cache.store().promote(key, promoted, now)
    }

    /// A response of a route in mode `override`.
    fn timed_response(
        &self,
        route: RouteMeaning,
        kept: KeptResponse,
        now: PurgeSequence,
        time: DiskTime,
    ) -> Option<StoredResponse> {
        if route.mode != Mode::Override || !time.knows_age_of(kept.received) {
            return None;
        }
        let freshness = kept.client_freshness;
        stored(kept, freshness, Attached::default(), now, time)
    }

    /// A response of a route in mode `chain`, and whether the blocks that it names are
    /// known to stand.
    fn chain_response(
        &self,
        route: RouteMeaning,
        mut kept: KeptResponse,
        stamp: KeptStamp,
        now: PurgeSequence,
        time: DiskTime,
    ) -> Option<(StoredResponse, bool)> {
        let (_, highest) = stamp.heights?;
        let (chain, tip) = (&self.chain, route.tip);
        if route.mode != Mode::Chain || !matches!(stamp.class, Class::Recent | Class::Final) {
            return None;
        }
        let is_of_this_run = chain.state_number(tip) == Some(stamp.state);
        let (class, epoch, stands) = match is_of_this_run {
            true => (stamp.class, stamp.epoch, true),
            false => match (
                chain.standing_blocks(tip, stamp.state, highest),
                stamp.class,
            ) {
                (Some(blocks), _) if blocks.are_final => (Class::Final, blocks.epoch, true),
                (Some(blocks), class) => (class, blocks.epoch, true),
                (None, class) => (class, NO_EPOCH, false),
            },
        };
        kept.lifetime = kept.lifetime.min(chain.finality().lifetime(class));
        let lifetime = chain.client_lifetime(class, tip, self.tier.now());
        let stamp = ChainStamp::new(class, tip, stamp.heights, epoch);
        let page = match kept.status == StatusCode::OK {
            true => Page::read(&kept.body),
            false => None,
        };
        let attached = Attached {
            stamp: Some(stamp.with_client_lifetime(lifetime)),
            page,
        };
        let freshness = ClientFreshness::of_class(class, lifetime);
        Some((stored(kept, freshness, attached, now, time)?, stands))
    }

    /// The variants of a target of a route in mode `respect`.
    fn variants(
        &self,
        route: RouteMeaning,
        kept: Vec<KeptVariant>,
        time: DiskTime,
    ) -> Option<Vec<Arc<Variant>>> {
        let known = kept.into_iter();
        let known = known.filter(|one| time.knows_age_of(one.received));
        let variants: Vec<_> = known
            .filter_map(|one| {
                let received = time.wall_of(one.received)?;
                Some(one.restore(&self.targets, received))
            })
            .map(Arc::new)
            .collect();
        (route.mode == Mode::Respect && !variants.is_empty()).then_some(variants)
    }
}

fn stored(
    kept: KeptResponse,
    freshness: ClientFreshness,
    attached: Attached,
    now: PurgeSequence,
    time: DiskTime,
) -> Option<StoredResponse> {
    Some(StoredResponse {
        status: kept.status,
        etag: kept.etag,
        metadata: Metadata::of(kept.content_type, freshness),
        received: time.moment_of(kept.received)?,
        lifetime: kept.lifetime,
        took: kept.took,
        body: kept.body,
        encodings: Encodings::allowed(kept.is_encodable),
        checked: CheckedSequence::at(now.purge()),
        attached,
    })
}
