//! Reloads: upstreams that come, change and go.

use crate::upstream::admission::Rates;
use crate::upstream::admission::budgets::{Budgets, REMEMBERED};
use crate::upstream::admission::queue::AdmissionQueue;
use crate::upstream::keys::Keys;

use super::{BUDGETS, BudgetModel, ModelUpstream, PROBES, list, rates, server};
use crate::upstream::keys::proof::ReloadChange;

impl BudgetModel {
    pub(super) fn add(&mut self, entry: usize, at: usize, bits: u8, limits: (u32, u32)) {
        let queue = AdmissionQueue::new(10, self.clock.clone());
        let keys = Keys::new(
            "default",
            list(bits),
            server(at),
            rates(limits),
            self.budgets.clone(),
            queue,
            self.clock.clone(),
        );
        keys.set_probes(PROBES);
        self.entries[entry] = Some(self.upstreams.len());
        self.upstreams.push(ModelUpstream {
            keys,
            bits,
            server: at,
            rates: limits,
            is_configured: true,
            states: Default::default(),
            given_up: Default::default(),
            shared: Default::default(),
        });
    }

    pub(super) fn reload(
        &mut self,
        entry: usize,
        change: ReloadChange,
        bits: u8,
        limits: (u32, u32),
    ) {
        let Some(at) = self.entries[entry] else {
            match change {
                ReloadChange::Here => self.add(entry, 0, bits, limits),
                ReloadChange::Elsewhere => self.add(entry, 1, bits, limits),
                ReloadChange::Gone => {}
            }
            return;
        };
        if let ReloadChange::Gone = change {
            self.entries[entry] = None;
            self.remove(at);
            return;
        }
        let upstream = &mut self.upstreams[at];
        let mut stays = [false; BUDGETS];
        if let ReloadChange::Elsewhere = change {
            upstream.keys = upstream.keys.elsewhere();
            upstream.server = 1 - upstream.server;
        } else {
            stays = std::array::from_fn(|budget| upstream.has(budget));
        }
        (upstream.bits, upstream.rates) = (bits, limits);
        upstream
            .keys
            .replace(list(bits), server(upstream.server), rates(limits));
        self.update_key_states(at, stays);
    }

    fn remove(&mut self, at: usize) {
        let upstream = &mut self.upstreams[at];
        upstream.keys.retire();
        // Drops the old `Keys`: from here on only requests under way hold it.
        upstream.keys = Keys::new(
            "default",
            vec![],
            server(0),
            Rates::UNLIMITED,
            Budgets::new(),
            AdmissionQueue::new(1, self.clock.clone()),
            self.clock.clone(),
        );
        upstream.is_configured = false;
    }

    fn update_key_states(&mut self, at: usize, stays: [bool; BUDGETS]) {
        let now = self.now();
        let upstream = &mut self.upstreams[at];
        for (budget, stays) in stays.into_iter().enumerate() {
            let is_configured = upstream.has(budget);
            let state = &mut upstream.states[budget];
            if !is_configured {
                state.removed_at.get_or_insert(now);
                continue;
            }
            // A key that was removed for long is forgotten. A refused key that is
            // configured again is tried at once.
            let removed_for = state.removed_at.take().map(|since| now - since);
            let is_forgotten =
                removed_for.is_some_and(|time| time >= REMEMBERED.as_millis() as u64);
            let is_refused = state.suspension.as_ref().is_some_and(|one| one.is_refused);
            if is_forgotten || is_refused && !stays {
                state.suspension = None;
            }
        }
    }
}
