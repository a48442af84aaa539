//! The state of relaying that survives reloads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::lingering::Lingering;
use super::shared::Announced;
use super::uncacheable::Uncacheable;
use crate::collapse::Collapse;
use crate::sync::lock;
use crate::upstream::{Upstream, Upstreams};

/// The state of relaying that survives reloads.
#[derive(Clone)]
pub struct RelayState {
    /// The keys that are being fetched.
    pub fetching: Arc<Collapse<Announced>>,
    pub(super) uncacheable: Arc<Uncacheable>,
    /// The bodies that continue without a slot, for each upstream by its name.
    lingering: Arc<Mutex<HashMap<Box<str>, Arc<Lingering>>>>,
}

impl RelayState {
    /// The state at the start, for these upstreams.
    pub(crate) fn new(upstreams: &Upstreams) -> Self {
        let new = Self {
            fetching: Collapse::new(),
            uncacheable: Arc::default(),
            lingering: Arc::default(),
        };
        new.bound(upstreams);
        new
    }

    /// Adopts the upstreams of a new configuration.
    pub(crate) fn bound(&self, upstreams: &Upstreams) {
        self.lingering()
            .retain(|name, _| upstreams.named(name).is_some());
        for (_, upstream) in upstreams.iter() {
            let slots = upstream.settings().admission.max_in_flight.get();
            self.lingering_at(upstream).bound(slots);
        }
    }

    /// The bodies of an upstream that continue without a slot.
    pub(super) fn lingering_at(&self, upstream: &Upstream) -> Arc<Lingering> {
        let slots = upstream.settings().admission.max_in_flight.get();
        let mut lingering = self.lingering();
        let of_upstream = lingering.entry(upstream.name().into());
        of_upstream
            .or_insert_with(|| Lingering::beside(slots))
            .clone()
    }

    fn lingering(&self) -> MutexGuard<'_, HashMap<Box<str>, Arc<Lingering>>> {
        lock(&self.lingering)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::clock::Clock;
    use crate::config::Config;
    use crate::identify::Client;
    use crate::upstream::ProviderKeys;
    use crate::upstream::resolver::Resolver;

    #[test]
    fn bodies_without_a_slot_are_bounded_separately_for_each_upstream() {
        let text = "upstream.url = \"http://127.0.0.1:1\"\nupstreams.runes.max_in_flight = 1\n";
        let config = Config::parse("p", text).unwrap();
        let (keys, names) = (ProviderKeys::default(), Resolver::default());
        let upstreams = |config: &Config| {
            Upstreams::new(&config.upstreams, &keys, &names, &Clock::manual(), None).unwrap()
        };
        let before = upstreams(&config);
        let ongoing = RelayState::new(&before);
        let enter = |ongoing: &RelayState, upstreams: &Upstreams, name: &str| {
            let lingering = ongoing.lingering_at(upstreams.named(name).unwrap());
            let clients = (0..1000).map(|n| Client::from(IpAddr::from([127, 0, n as u8, 1])));
            clients
                .map_while(|client| lingering.enter(client))
                .collect::<Vec<_>>()
        };
        let held = enter(&ongoing, &before, "runes");
        assert!(!held.is_empty());
        assert_eq!(enter(&ongoing, &before, "runes").len(), 0, "all are taken");
        assert!(enter(&ongoing, &before, "default").len() > held.len());
        // A reload with the same upstreams keeps the count.
        let after = upstreams(&config);
        ongoing.bound(&after);
        assert_eq!(enter(&ongoing, &after, "runes").len(), 0);
        drop(held);
        assert!(!enter(&ongoing, &after, "runes").is_empty());
    }
}
