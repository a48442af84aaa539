//! A reload: what an upstream takes over from the one before.

use std::path::Path;
use std::sync::{Arc, Mutex};

use http::Uri;

use super::admission::queue::AdmissionQueue;
use super::client::pool::ConnectionPool;
use super::endpoint::selection::EndpointSelection;
use super::endpoint::{Endpoint, Host, host};
use super::keys::ApiKey;
use super::{Settings, SetupError, Upstream};
use crate::clock::Clock;
use crate::regular_file::{self, MAX_AUTHORITIES};

impl Upstream {
    /// The upstream that follows `before`: the same one with other settings, or
    /// another one of the same name. It keeps the connections if they are made in
    /// the same way, the state of each endpoint whose URL is kept, and the counts.
    /// Before [`take_over`](Self::take_over) it has the keys of `before`, or none
    /// if they must not be sent to its URLs, and the bounds of `before`.
    ///
    /// # Errors
    /// As [`new`](Self::new), with these keys; nothing has changed then.
    pub fn after(before: &Self, settings: Settings, keys: &[ApiKey]) -> Result<Self, SetupError> {
        settings.check(keys)?;
        let authorities = authorities(&settings);
        let (urls, old) = (&settings.endpoints.urls, &before.settings);
        let old_urls = &old.endpoints.urls;
        let connects_alike = authorities == before.authorities && settings.connects_as(old);
        let pool = match connects_alike {
            true => before.pool.clone(),
            false => ConnectionPool::new(&settings, before.resolver.clone())?,
        };
        // Requests that wait at `before` will carry the new keys: these must not be
        // sent to a URL that is no longer configured.
        let may_share_keys = old_urls.iter().all(|url| urls.contains(url))
            && settings.keys.header == old.keys.header;
        Ok(Self {
            endpoints: endpoints(&settings, &before.endpoints, &before.queue, &before.clock),
            selection: before.next_selection(&settings),
            switched: before.switched.clone(),
            keys: match may_share_keys {
                true => before.keys.clone(),
                false => before.keys.elsewhere(),
            },
            queue: before.queue.clone(),
            retries: before.retries.clone(),
            pool,
            resolver: before.resolver.clone(),
            authorities,
            uploads: before.uploads.clone(),
            status_paths: Mutex::default(),
            via: before.via.clone(),
            counters: before.counters.clone(),
            usage: before.usage.clone(),
            settings,
            clock: before.clock.clone(),
        })
    }

    /// Uses these keys and its own bounds from now on.
    pub fn take_over(&self, keys: Vec<ApiKey>) {
        let settings = &self.settings;
        for endpoint in &self.endpoints {
            endpoint.bound(&settings.breaker, settings.admission.max_in_flight.get());
        }
        self.queue
            .set_capacity(settings.admission.max_queue.get() as usize);
        self.retries().bound(settings.retry.share);
        let rates = settings.rates(!keys.is_empty());
        let sent = sent_keys(settings, keys);
        self.keys.replace(sent, rates, hosts(&self.endpoints));
    }

    /// If no upstream has its keys any more: they are free for the others. Requests in
    /// flight and in the queue finish.
    pub(super) fn retire_before(&self, next: Option<&Arc<Self>>) {
        if next.is_none_or(|next| !Arc::ptr_eq(&next.keys, &self.keys)) {
            self.keys.retire();
        }
    }

    /// Whether both have an endpoint in common, so that an answer of one is what
    /// the other would answer.
    pub fn shares_endpoint_with(&self, other: &Self) -> bool {
        let urls = &other.settings.endpoints.urls;
        let mut own = self.settings.endpoints.urls.iter();
        own.any(|url| urls.contains(url))
    }

    /// Whether both have an origin in common (RFC 9110 §4.3.1), whatever the paths
    /// of their base URLs.
    pub fn shares_origin_with(&self, other: &Self) -> bool {
        let others = || other.settings.endpoints.urls.iter().map(host);
        let mut own = self.settings.endpoints.urls.iter().map(host);
        self.name() == other.name() || own.any(|own| others().any(|other| other == own))
    }

    /// The selection of the upstream that follows, with these settings.
    fn next_selection(&self, settings: &Settings) -> Arc<Mutex<EndpointSelection>> {
        let (old, new) = (&self.settings.endpoints, &settings.endpoints);
        if new.urls == old.urls && new.return_after == old.return_after {
            return self.selection.clone();
        }
        let old_index = |url: &Uri| old.urls.iter().position(|known| known == url);
        let old_indexes: Vec<_> = new.urls.iter().map(old_index).collect();
        let next = self.selection().next(&old_indexes, new.return_after);
        Arc::new(Mutex::new(next))
    }
}

/// The keys that requests carry.
pub(super) fn sent_keys(settings: &Settings, keys: Vec<ApiKey>) -> Vec<ApiKey> {
    match settings.keys.send {
        true => keys,
        false => Vec::new(),
    }
}

/// The hosts of these endpoints.
pub(super) fn hosts(endpoints: &[Arc<Endpoint>]) -> Vec<Host> {
    let mut hosts: Vec<Host> = endpoints.iter().map(|one| one.host().clone()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts
}

/// The endpoints of these settings: those of `known` with the same URL, else new
/// ones.
pub(super) fn endpoints(
    settings: &Settings,
    known: &[Arc<Endpoint>],
    queue: &Arc<AdmissionQueue>,
    clock: &Clock,
) -> Box<[Arc<Endpoint>]> {
    let endpoint = |url: &Uri| match known.iter().find(|known| known.url() == url) {
        Some(known) => known.clone(),
        None => Endpoint::new(
            url.clone(),
            settings.breaker.clone(),
            settings.admission.max_in_flight.get(),
            queue.clone(),
            clock.clone(),
        ),
    };
    settings.endpoints.urls.iter().map(endpoint).collect()
}

/// The first endpoint of these settings.
pub(super) fn selection(settings: &Settings) -> Arc<Mutex<EndpointSelection>> {
    let endpoints = &settings.endpoints;
    let selection = EndpointSelection::new(endpoints.urls.len(), endpoints.return_after);
    Arc::new(Mutex::new(selection))
}

/// The content of `ca_file`, to find out whether it has changed. A file that
/// cannot be read is reported when it is used.
pub(super) fn authorities(settings: &Settings) -> Option<Vec<u8>> {
    let path: &Path = settings.connections.ca_file.as_deref()?;
    regular_file::read(path, MAX_AUTHORITIES).ok()
}
