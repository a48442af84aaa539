//! The upstreams of a gateway, by name and by number.
//!
//! Each has its own endpoints, connections, breakers, admission queue, retry
//! and budget, so that the failures of one affect its own routes only.
//! Provider keys are shared unless an upstream has keys of its own; the budget of a
//! key is shared by all upstreams that it is sent to.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::admission::Replicas;
use super::admission::budget::LONGEST_WAIT;
use super::admission::budgets::Budgets;
use super::admission::spend_journal::{JournalSnapshot, SpendJournal};
use super::keys::ApiKey;
use super::{Settings, SetupError, Upstream, UpstreamClient};
use crate::clock::{Clock, Moment};
use crate::state_dir::{OpenedState, StateDir};
use crate::upstream::client::resolver::Resolver;
use crate::upstream::usage::Usage;

/// Why the spending of other processes is not known.
const NO_DIRECTORY: &str = "replicas share the budgets, and this one has no state directory";

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
        Self::with_budgets(settings, keys, resolver, clock, substitute, &Budgets::new())
    }

    /// The same, where what the keys spend is kept in the state directory. While another
    /// process uses it, what that one spends is not known. With `replicas`, budgets are
    /// shared by them, and what the process before has spent is known from the directory
    /// alone.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if there is no thread for it.
    pub(crate) fn journalled(
        settings: &[Settings],
        keys: &ProviderKeys,
        resolver: &Resolver,
        clock: &Clock,
        substitute: Option<&Arc<dyn UpstreamClient>>,
        state: &OpenedState,
        replicas: Option<Replicas>,
    ) -> Result<Arc<Self>, SetupError> {
        let budgets = match state.directory() {
            Some(directory) => {
                let is_shared = replicas.is_some();
                let journal = SpendJournal::open(directory.clone(), clock.clone(), is_shared);
                Budgets::journalled(journal.map_err(SetupError::Journal)?)
            }
            None if state.is_missing() => Budgets::beside_another_process(clock.now()),
            None if replicas.is_none() => Budgets::new(),
            None => {
                tracing::warn!(
                    seconds = LONGEST_WAIT.as_secs() + 1,
                    "what the API keys had spent before the start is not known, since {NO_DIRECTORY}: keys with a limit are not used until it counts no more"
                );
                Budgets::unknown_before(clock.now(), NO_DIRECTORY)
            }
        };
        let budgets = match replicas {
            Some(replicas) => budgets.shared(replicas, clock.clone()),
            None => budgets,
        };
        Self::with_budgets(settings, keys, resolver, clock, substitute, &budgets)
    }

    fn with_budgets(
        settings: &[Settings],
        keys: &ProviderKeys,
        resolver: &Resolver,
        clock: &Clock,
        substitute: Option<&Arc<dyn UpstreamClient>>,
        budgets: &Arc<Budgets>,
    ) -> Result<Arc<Self>, SetupError> {
        let usage = Arc::<Usage>::default();
        let new = |settings: &Settings| {
            let (settings, keys) = (settings.clone(), keys.of(settings).to_vec());
            let upstream = Upstream::new(
                settings,
                keys,
                resolver.clone(),
                budgets.clone(),
                usage.clone(),
                clock.clone(),
            );
            upstream.map(Arc::new)
        };
        let all: Result<Box<[_]>, _> = settings.iter().map(new).collect();
        Self::of(all.map_err(|error| among(settings, error))?, substitute)
    }

    /// The upstreams of a configuration that follows `before`. One with the name of an
    /// upstream before takes over its state ([`Upstream::after`]). Nothing changes until
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
        let next = |settings: &Settings| {
            let keys = keys.of(settings);
            match before.named(&settings.name) {
                Some(known) => Upstream::after(known, settings.clone(), keys),
                None => Upstream::new(
                    settings.clone(),
                    keys.to_vec(),
                    resolver.clone(),
                    before.first().budgets().clone(),
                    before.usage().clone(),
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
        substitute: Option<&Arc<dyn UpstreamClient>>,
    ) -> Result<Arc<Self>, SetupError> {
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

    /// Uses these keys and the bounds of the new configuration from now on, in place of
    /// those `before`.
    pub fn take_over(&self, before: &Self, keys: &ProviderKeys) {
        for upstream in &self.all {
            upstream.take_over(keys.of(upstream.settings()).to_vec());
        }
        let is_gone = |old: &&Arc<Upstream>| self.named(old.name()).is_none();
        for gone in before.all.iter().filter(is_gone) {
            gone.retire();
        }
    }

    /// Keeps what the keys spend in a state directory that another process has used until
    /// now.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub(crate) fn begin_journal(&self, directory: Arc<StateDir>, clock: Clock) -> io::Result<()> {
        self.first().budgets().begin_journal(directory, clock)?;
        for upstream in &self.all {
            upstream.restore_cooldowns();
        }
        Ok(())
    }

    /// The state of the spend journal, if there is one.
    pub(crate) fn journal_snapshot(&self) -> Option<JournalSnapshot> {
        Some(self.first().budgets().journal()?.snapshot())
    }

    /// What their requests are sent for.
    pub(crate) fn usage(&self) -> &Arc<Usage> {
        &self.first().usage
    }

    /// The budgets of all keys.
    pub(crate) fn budgets(&self) -> &Arc<Budgets> {
        self.first().budgets()
    }

    /// The replicas that share the budgets, if there are several.
    pub(crate) fn replicas(&self) -> Option<Replicas> {
        self.first().budgets().replicas()
    }

    /// How long keys with a limit a minute are not used because their spending before the
    /// start is not known, and why it is not; `None` where it is known.
    pub(crate) fn unknown_spending(&self, now: Moment) -> Option<(Duration, &'static str)> {
        // Without a limit it does not matter.
        let mut upstreams = self.all.iter();
        upstreams
            .any(|upstream| upstream.keys.have_limit())
            .then_some(())?;
        self.first().budgets().unknown_spending(now)
    }

    /// Writes what is left to write of the spend journal, when nothing is sent any more.
    pub(crate) fn close_journal(&self) {
        if let Some(journal) = self.first().budgets().journal() {
            journal.close();
        }
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

/// The error of one of several upstreams: without a default URL there may be others.
fn among(settings: &[Settings], error: SetupError) -> SetupError {
    match settings.len() > 1 && matches!(error, SetupError::NoUpstream) {
        true => SetupError::NoDefaultUrl,
        false => error,
    }
}
