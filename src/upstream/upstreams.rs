//! The upstreams of a gateway, by name and by number.
//!
//! Each has its own endpoints, connections, breakers, admission queue, retry
//! and budget, so that the failures of one affect its own routes only.
//! Provider keys are shared unless an upstream has keys of its own; the budget of a
//! key is shared by all upstreams that it is sent to.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::key::{KeyUse, ProviderKey};
use super::keys::{ApiKey, Budgets};
use super::{Settings, SetupError, Upstream, UpstreamClient};
use crate::clock::Clock;

/// The provider's keys: shared ones, and those of upstreams with keys of their own.
#[derive(Clone, Debug, Default)]
pub struct ProviderKeys {
    /// The keys of upstreams without keys of their own.
    pub shared: Vec<ApiKey>,
    /// The keys of the others, by the upstream's name.
    pub own: BTreeMap<Box<str>, Vec<ApiKey>>,
}

impl ProviderKeys {
    /// The keys of an upstream. Its requests carry them unless its `send_api_key` is
    /// false.
    pub fn of(&self, settings: &Settings) -> &[ApiKey] {
        self.own.get(&*settings.name).unwrap_or(&self.shared)
    }
}

/// The upstreams of a gateway. Routes and tips refer to them by number, which is valid
/// for one configuration; names are stable across reloads.
pub struct Upstreams {
    all: Box<[Arc<Upstream>]>,
    /// What gets the requests in place of each, in a test.
    substitute: Option<Arc<dyn UpstreamClient>>,
}

impl Upstreams {
    /// The upstreams of a configuration. No connection is made yet. One with the name of an
    /// upstream `before` keeps its state. A `substitute` gets the requests in place of each.
    /// Nothing is sent, and nothing of `before` changes, until [`take_over`](Self::take_over).
    ///
    /// # Errors
    /// If there is none, or one of them cannot be called.
    pub(crate) fn new(
        settings: &[Settings],
        keys: &ProviderKeys,
        before: Option<&Self>,
        budgets: &Arc<Budgets>,
        clock: &Clock,
        substitute: Option<&Arc<dyn UpstreamClient>>,
    ) -> Result<Arc<Self>, SetupError> {
        let make = |one: &Settings| {
            let before = before.and_then(|before| before.named(&one.name));
            let (keys, before) = (keys.of(one).to_vec(), before.map(|before| &**before));
            Upstream::new(one.clone(), keys, before, budgets, clock)
        };
        let all: Box<[_]> = settings.iter().map(make).collect::<Result<_, _>>()?;
        if all.is_empty() {
            return Err(SetupError::NoUpstream);
        }
        let substitute = substitute.cloned();
        Ok(Arc::new(Self { all, substitute }))
    }

    /// From now on requests are sent by this configuration, also those that wait: each key has
    /// the strictest limits of the upstreams that use it, and a part of it is kept for the tip
    /// probes of all of them.
    pub fn take_over(&self) {
        let mut uses: Vec<(&Arc<ProviderKey>, KeyUse)> = Vec::new();
        let each = self.all.iter();
        for (upstream, key) in each.flat_map(|one| one.keys.of_process().map(move |key| (one, key)))
        {
            let own = upstream.key_use();
            match uses.iter_mut().find(|(known, _)| Arc::ptr_eq(known, key)) {
                Some((_, known)) => known.join(own),
                None => uses.push((key, own)),
            }
        }
        for (key, how) in uses {
            key.configure(how, self.first().clock.now());
        }
        for upstream in &self.all {
            upstream.queue.serve(upstream);
        }
    }

    /// The upstream with this number; the first if there is none.
    pub fn get(&self, number: u16) -> &Arc<Upstream> {
        self.all.get(usize::from(number)).unwrap_or(&self.all[0])
    }

    /// What requests to the upstream with this number are sent through.
    pub fn client(&self, number: u16) -> &dyn UpstreamClient {
        match &self.substitute {
            Some(substitute) => &**substitute,
            None => &**self.get(number),
        }
    }

    /// The first: the default one, if any route or tip uses it.
    pub fn first(&self) -> &Arc<Upstream> {
        &self.all[0]
    }

    /// The upstream with this name.
    pub fn named(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.all.iter().find(|upstream| upstream.name() == name)
    }

    /// All of them, each with its number, in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Arc<Upstream>)> {
        (0..).zip(&self.all)
    }

    /// Whether the upstream with this number has an endpoint in common with the one of
    /// the same name before, so that answers of that one are still valid.
    pub fn stays(&self, number: u16, before: &Self) -> bool {
        let upstream = self.get(number);
        let known = before.named(upstream.name());
        let mut known = known.iter().flat_map(|known| &known.settings.urls);
        known.any(|url| upstream.settings.urls.contains(url))
    }
}
