//! The upstreams of a gateway, by name and by number.
//!
//! Each has its own endpoints, connections, breakers, admission queue, retry
//! budget and hedging, so that the failures of one touch its own routes only.
//! Provider keys are shared unless an upstream has keys of its own; what a key
//! has spent counts for all upstreams that it is sent to.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::admission::budgets::Budgets;
use super::keys::ApiKey;
use super::{Settings, SetupError, Upstream, UpstreamClient};
use crate::clock::Clock;
use crate::upstream::client::resolver::Names;

/// The provider's keys: those of most upstreams, and those of upstreams that
/// have keys of their own.
#[derive(Clone, Debug, Default)]
pub struct ProviderKeys {
    /// The keys of each upstream that has none of its own.
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
    /// The keys of an upstream, which its requests carry unless its
    /// `send_api_key` is false.
    pub fn of(&self, settings: &Settings) -> &[ApiKey] {
        self.own.get(&*settings.name).unwrap_or(&self.shared)
    }
}

/// The upstreams of a gateway. Routes and tips know them by their numbers, which
/// are those of one configuration; names last across reloads.
pub struct Upstreams {
    all: Box<[Arc<Upstream>]>,
    /// Who answers for each: itself, or what stands in for it in a test.
    asked: Box<[Arc<dyn UpstreamClient>]>,
}

impl Upstreams {
    /// Prepares to call upstreams; no connection is made yet. Where `stand_in` is
    /// given, it is asked in place of each of them.
    ///
    /// # Errors
    /// Where there is none, or one of them cannot be called.
    pub fn new(
        settings: &[Settings],
        keys: &ProviderKeys,
        names: &Names,
        clock: &Clock,
        stand_in: Option<&Arc<dyn UpstreamClient>>,
    ) -> Result<Arc<Self>, SetupError> {
        let budgets = Budgets::new();
        let new = |settings: &Settings| {
            let (settings, keys) = (settings.clone(), keys.of(settings).to_vec());
            let upstream = Upstream::new(
                settings,
                keys,
                names.clone(),
                budgets.clone(),
                clock.clone(),
            );
            upstream.map(Arc::new)
        };
        let all: Result<Box<[_]>, _> = settings.iter().map(new).collect();
        Self::of(all.map_err(|error| among(settings, error))?, stand_in)
    }

    /// Prepares to call the upstreams of a configuration that comes after
    /// another. One that has the name of one before goes on as it
    /// ([`Upstream::after`]). Nothing has changed until
    /// [`take_over`](Self::take_over).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn after(
        before: &Self,
        settings: &[Settings],
        keys: &ProviderKeys,
        names: &Names,
        clock: &Clock,
    ) -> Result<Arc<Self>, SetupError> {
        let next = |settings: &Settings| {
            let keys = keys.of(settings);
            match before.named(&settings.name) {
                Some(known) => Upstream::after(known, settings.clone(), keys),
                None => Upstream::new(
                    settings.clone(),
                    keys.to_vec(),
                    names.clone(),
                    before.first().budgets().clone(),
                    clock.clone(),
                ),
            }
            .map(Arc::new)
        };
        let all: Result<Box<[_]>, _> = settings.iter().map(next).collect();
        Self::of(all.map_err(|error| among(settings, error))?, None)
    }

    fn of(
        all: Box<[Arc<Upstream>]>,
        stand_in: Option<&Arc<dyn UpstreamClient>>,
    ) -> Result<Arc<Self>, SetupError> {
        if all.is_empty() {
            return Err(SetupError::NoUpstream);
        }
        let asked = all.iter().map(|upstream| match stand_in {
            Some(stand_in) => stand_in.clone(),
            None => upstream.clone(),
        });
        let asked = asked.collect();
        Ok(Arc::new(Self { all, asked }))
    }

    /// Asks with these keys, within the bounds of the new configuration, from now
    /// on, in place of those `before`.
    pub fn take_over(&self, before: &Self, keys: &ProviderKeys) {
        for upstream in &self.all {
            upstream.take_over(keys.of(upstream.settings()).to_vec());
        }
        let is_gone = |known: &&Arc<Upstream>| self.named(known.name()).is_none();
        for gone in before.all.iter().filter(is_gone) {
            gone.retire();
        }
    }

    /// The upstream of a number; the first where there is none of that number.
    pub fn get(&self, number: u16) -> &Arc<Upstream> {
        self.all.get(usize::from(number)).unwrap_or(&self.all[0])
    }

    /// Who answers for the upstream of a number.
    pub fn asked(&self, number: u16) -> &Arc<dyn UpstreamClient> {
        self.asked
            .get(usize::from(number))
            .unwrap_or(&self.asked[0])
    }

    /// The first: the default one, where any route or tip goes by it.
    pub fn first(&self) -> &Arc<Upstream> {
        &self.all[0]
    }

    /// The upstream of a name.
    pub fn named(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.all.iter().find(|upstream| upstream.name() == name)
    }

    /// All of them, each with its number, in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Arc<Upstream>)> {
        (0..).zip(&self.all)
    }

    /// Whether the upstream of a number is at some place where the upstream of
    /// that name was before: what one has answered is what the other would.
    pub fn stays(&self, number: u16, before: &Self) -> bool {
        let upstream = self.get(number);
        let known = before.named(upstream.name());
        known.is_some_and(|known| upstream.is_where(known))
    }
}

/// An error of one of these upstreams: where there are others, to be without a
/// default URL is not to be without any.
fn among(settings: &[Settings], error: SetupError) -> SetupError {
    match settings.len() > 1 && matches!(error, SetupError::NoUpstream) {
        true => SetupError::NoDefaultUrl,
        false => error,
    }
}
