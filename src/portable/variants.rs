//! The variants of a target, of a route in mode `respect`, as they are kept outside the
//! process.
//!
//! What decides their reuse follows from their fields, and is not kept itself: a
//! variant for which it would not follow ([`KeptVariant::of`]) is not kept. Nor is one
//! that was answered to a client with credentials, or that restricts who may have it,
//! or whose `Vary` names a field that may have a secret: values of such fields are part
//! of what is kept.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{AUTHORIZATION, DATE, ORIGIN, SET_COOKIE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::bytes::{Reader, put_bytes};
use super::codec::{MOST_BODY, body, put_body, put_span, span};
use crate::cache::date;
use crate::cache::directives::Scope;
use crate::cache::encodings::Encodings;
use crate::cache::reuse::StoredFacts;
use crate::cache::targeted::TargetList;
use crate::cache::variant::Variant;
use crate::cache::vary::{Nominated, SecondaryKey};

/// The most variants and the most fields that are decoded: more than are stored.
const MOST: u16 = 4096;

/// A stored response of a route in mode `respect`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeptVariant {
    pub(crate) status: StatusCode,
    pub(crate) fields: HeaderMap,
    pub(crate) nominated: Nominated,
    pub(crate) secondary: SecondaryKey,
    /// When it was received.
    pub(crate) received: u64,
    /// Its age when it was received.
    pub(crate) initial_age: Duration,
    pub(crate) is_encodable: bool,
    pub(crate) body: Bytes,
}

impl KeptVariant {
    /// A variant as it is kept, if it may be and is fresh for longer than
    /// `min_freshness`. `time_of` gives times by the clock of whoever keeps it.
    pub(crate) fn of(
        variant: &Variant,
        targets: &TargetList,
        min_freshness: Duration,
        now: SystemTime,
        time_of: impl Fn(SystemTime) -> u64,
    ) -> Option<Self> {
        let facts = &variant.reuse;
        let directives = facts.directives();
        let lifetime = facts.lifetime().duration;
        let left = lifetime.saturating_sub(facts.aging().current_age(now));
        let is_for_one = variant.is_personal
            || variant.fields.contains_key(SET_COOKIE)
            || variant.fields.contains_key(AUTHORIZATION)
            || !is_without_secrets(&variant.nominated)
            || directives.private != Scope::Absent
            || directives.no_store;
        if is_for_one
            || left <= min_freshness
            || directives.no_cache != Scope::Absent
            || variant.body.len() > MOST_BODY
        {
            return None;
        }
        let (initial_age, received) = facts.aging().parts();
        let mut fields = variant.fields.clone();
        if variant.is_dated_here {
            // The lifetime does not count from it.
            fields.remove(DATE);
        }
        let kept = Self {
            status: variant.status,
            fields,
            nominated: variant.nominated.clone(),
            secondary: variant.secondary.clone(),
            received: time_of(received),
            initial_age,
            is_encodable: variant.encodings.are_allowed(),
            body: variant.body.clone(),
        };
        // As it will be read, in this very moment.
        let again = kept.facts(targets, received);
        let same = again.directives() == directives && again.lifetime() == facts.lifetime();
        same.then_some(kept)
    }

    fn facts(&self, targets: &TargetList, received: SystemTime) -> StoredFacts {
        StoredFacts::restored(
            self.status,
            &self.fields,
            targets,
            self.initial_age,
            received,
        )
    }

    /// The variant as it is stored in memory, given when it was received by the clock of
    /// this process.
    pub(crate) fn restore(self, targets: &TargetList, received: SystemTime) -> Variant {
        let reuse = self.facts(targets, received);
        let mut fields = self.fields;
        let is_dated_here = !fields.contains_key(DATE);
        if is_dated_here {
            fields.insert(DATE, date::value(received));
        }
        Variant {
            reuse,
            status: self.status,
            fields,
            body: self.body,
            encodings: Encodings::allowed(self.is_encodable),
            nominated: self.nominated,
            secondary: self.secondary,
            received,
            is_dated_here,
            is_personal: false,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.status.as_u16().to_le_bytes());
        let count = u16::try_from(self.fields.len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&count.to_le_bytes());
        for (name, value) in &self.fields {
            put_bytes(out, name.as_str().as_bytes());
            put_bytes(out, value.as_bytes());
        }
        match &self.nominated {
            Nominated::Everything => out.push(0),
            Nominated::Fields(names) => {
                out.push(1);
                let count = u16::try_from(names.len()).unwrap_or(u16::MAX);
                out.extend_from_slice(&count.to_le_bytes());
                for name in names {
                    put_bytes(out, name.as_str().as_bytes());
                }
            }
        }
        put_bytes(out, self.secondary.as_bytes());
        out.extend_from_slice(&self.received.to_le_bytes());
        put_span(out, self.initial_age);
        out.push(u8::from(self.is_encodable));
        put_body(out, &self.body);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let status = StatusCode::from_u16(from.u16()?).ok()?;
        let mut fields = HeaderMap::new();
        for _ in 0..count(from)? {
            let name = name(from)?;
            let value = HeaderValue::from_bytes(from.bytes()?).ok()?;
            fields.try_append(name, value).ok()?;
        }
        let nominated = match from.bool()? {
            false => Nominated::Everything,
            true => {
                let names = (0..count(from)?).map(|_| name(from));
                Nominated::Fields(names.collect::<Option<_>>()?)
            }
        };
        Some(Self {
            status,
            fields,
            nominated,
            secondary: SecondaryKey::from_bytes(from.bytes()?),
            received: from.u64()?,
            initial_age: span(from)?,
            is_encodable: from.bool()?,
            body: body(from, MOST_BODY)?,
        })
    }
}

/// Whether the values of all nominated fields may be kept: they say what a
/// client prefers or is, and not who it is.
fn is_without_secrets(nominated: &Nominated) -> bool {
    let Nominated::Fields(names) = nominated else {
        return true;
    };
    names.iter().all(|name| {
        let known = *name == ORIGIN || *name == USER_AGENT;
        let begins = |with| name.as_str().starts_with(with);
        known || begins("accept") || begins("sec-ch-ua")
    })
}

fn name(from: &mut Reader<'_>) -> Option<HeaderName> {
    let bytes = from.bytes()?;
    let name = HeaderName::from_bytes(bytes).ok()?;
    // Written in lower case.
    (name.as_str().as_bytes() == bytes).then_some(name)
}

fn count(from: &mut Reader<'_>) -> Option<u16> {
    from.u16().filter(|count| *count <= MOST)
}

pub(crate) fn write(variants: &[KeptVariant], out: &mut Vec<u8>) {
    let count = u16::try_from(variants.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&count.to_le_bytes());
    for variant in variants {
        variant.write(out);
    }
}

pub(crate) fn read(from: &mut Reader<'_>) -> Option<Vec<KeptVariant>> {
    (0..count(from)?).map(|_| KeptVariant::read(from)).collect()
}

#[cfg(test)]
mod tests {
    use http::header::{EXPIRES, VARY};

    use super::*;

    /// Its lifetime counts from its receipt, not from the date that was added to it.
    #[test]
    fn a_variant_that_came_without_a_date_is_fresh_until_it_expires() {
        let second = |n: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000 + n);
        let received = second(0) + Duration::from_millis(750);
        let mut fields = HeaderMap::new();
        fields.insert(EXPIRES, date::value(second(60)));
        let targets = TargetList::default();
        let reuse =
            StoredFacts::restored(StatusCode::OK, &fields, &targets, Duration::ZERO, received);
        fields.insert(DATE, date::value(received));
        let variant = Variant {
            status: StatusCode::OK,
            nominated: Nominated::of(&fields),
            fields,
            body: Bytes::new(),
            encodings: Encodings::default(),
            secondary: SecondaryKey::default(),
            reuse,
            received,
            is_dated_here: true,
            is_personal: false,
        };
        let kept = KeptVariant::of(&variant, &targets, Duration::ZERO, received, |_| 0).unwrap();
        assert_eq!(kept.fields.get(DATE), None);
        // As the clock of another process may tell it.
        for drift in [0, 20] {
            let received = received - Duration::from_millis(drift);
            let restored = kept.clone().restore(&targets, received);
            assert!(restored.is_dated_here);
            assert_eq!(restored.fields, variant.fields);
            let end = second(60);
            assert!(!restored.reuse.is_fresh(end), "{drift}");
            assert!(
                restored.reuse.is_fresh(end - Duration::from_millis(1)),
                "{drift}"
            );
        }
    }

    #[test]
    fn fields_that_may_have_secrets_are_not_written() {
        let is_kept = |vary| {
            let mut fields = HeaderMap::new();
            fields.insert(VARY, HeaderValue::from_static(vary));
            is_without_secrets(&Nominated::of(&fields))
        };
        assert!(is_kept("accept, Accept-Language, origin, user-agent"));
        assert!(is_kept("sec-ch-ua-platform"));
        for secret in ["cookie", "authorization", "x-api-key", "accept, Cookie"] {
            assert!(!is_kept(secret), "{secret}");
        }
    }
}
