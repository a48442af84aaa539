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
use crate::state::Spent;
use crate::upstream::resolver::Resolver;

/// The provider's keys: shared ones, and those of upstreams with keys of their own.
#[derive(Clone, Debug, Default)]
pub struct ProviderKeys {
    /// The keys of upstreams without keys of their own.
    pub shared: Vec<ApiKey>,
    /// The keys of the others, by the upstream's name.
    pub own: BTreeMap<Box<str>, Vec<ApiKey>>,
}

impl From<Vec<ApiKey>> for ProviderKeys {
    fn from(shared: Vec<ApiKey>) -> Self {
        let own = BTreeMap::new();
        Self { shared, own }
    }
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
    /// What requests to each are sent through: itself, or a substitute in a test.
    clients: Box<[Arc<dyn UpstreamClient>]>,
}

impl Upstreams {
    /// Upstreams with these settings and keys. No connection is made yet. A
    /// `substitute` gets the requests in place of each of them.
    ///
    /// # Errors
    /// If there is none, or one of them cannot be called.
    pub fn new(
        settings: &[Settings],
        keys: &ProviderKeys,
        resolver: &Resolver,
        clock: &Clock,
        substitute: Option<&Arc<dyn UpstreamClient>>,
    ) -> Result<Arc<Self>, SetupError> {
        let budgets = Arc::new(Budgets::new(None, Spent::default()));
        Self::with_budgets(settings, keys, resolver, clock, substitute, &budgets)
    }

    /// The same, with the keys and what they have spent.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn with_budgets(
        settings: &[Settings],
        keys: &ProviderKeys,
        resolver: &Resolver,
        clock: &Clock,
        substitute: Option<&Arc<dyn UpstreamClient>>,
        budgets: &Arc<Budgets>,
    ) -> Result<Arc<Self>, SetupError> {
        let none = |_: &str| None;
        let new = Self::make(settings, keys, none, resolver, budgets, clock, substitute)?;
        new.take_over();
        Ok(new)
    }

    /// The upstreams of a configuration that follows `before`. One with the name of an
    /// upstream before takes over its state. Nothing changes until
    /// [`take_over`](Self::take_over).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn after(
        before: &Self,
        settings: &[Settings],
        keys: &ProviderKeys,
        resolver: &Resolver,
        clock: &Clock,
    ) -> Result<Arc<Self>, SetupError> {
        let named = |name: &str| before.named(name);
        Self::make(
            settings,
            keys,
            named,
            resolver,
            before.budgets(),
            clock,
            None,
        )
    }

    fn make<'b>(
        settings: &[Settings],
        keys: &ProviderKeys,
        before: impl Fn(&str) -> Option<&'b Arc<Upstream>>,
        resolver: &Resolver,
        budgets: &Arc<Budgets>,
        clock: &Clock,
        substitute: Option<&Arc<dyn UpstreamClient>>,
    ) -> Result<Arc<Self>, SetupError> {
        let make = |one: &Settings| {
            let (keys, before) = (keys.of(one).to_vec(), before(&one.name));
            let before = before.map(|before| &**before);
            Upstream::new(one.clone(), keys, before, resolver, budgets, clock)
        };
        let all: Result<Box<[_]>, _> = settings.iter().map(make).collect();
        // There may be others.
        let is_one_of_several =
            |error: &SetupError| settings.len() > 1 && matches!(error, SetupError::NoUpstream);
        let all = all.map_err(|error| {
            if is_one_of_several(&error) {
                SetupError::NoDefaultUrl
            } else {
                error
            }
        })?;
        if all.is_empty() {
            return Err(SetupError::NoUpstream);
        }
        let clients = all.iter().map(|upstream| match substitute {
            Some(substitute) => substitute.clone(),
            None => upstream.clone(),
        });
        let clients = clients.collect();
        Ok(Arc::new(Self { all, clients }))
    }

    /// From now on requests are sent by this configuration, also those that wait.
    pub fn take_over(&self) {
        self.share_budgets();
        for upstream in &self.all {
            upstream.queue.serve(upstream);
        }
    }

    /// Gives each key the strictest limits of the upstreams that use it, and keeps a part of
    /// it for the tip probes of all of them.
    pub(crate) fn share_budgets(&self) {
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
    }

    /// The budgets of all keys.
    pub(crate) fn budgets(&self) -> &Arc<Budgets> {
        self.first().budgets()
    }

    /// The upstream with this number; the first if there is none.
    pub fn get(&self, number: u16) -> &Arc<Upstream> {
        self.all.get(usize::from(number)).unwrap_or(&self.all[0])
    }

    /// What requests to the upstream with this number are sent through.
    pub fn client(&self, number: u16) -> &Arc<dyn UpstreamClient> {
        self.clients
            .get(usize::from(number))
            .unwrap_or(&self.clients[0])
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
        known.is_some_and(|known| upstream.shares_endpoint_with(known))
    }
}
