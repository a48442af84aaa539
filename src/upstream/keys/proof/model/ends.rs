//! How requests end: by an answer, a failure, a timeout or a closed connection.

use std::time::Duration;

use super::{BudgetModel, KeySuspension, PendingArrival, unanswered_after_end};
use crate::upstream::admission::budget::ARRIVAL_LIMIT;
use crate::upstream::connection::Connection;

impl BudgetModel {
    /// Advances the clock; requests that are due meanwhile end at their moment.
    pub(in super::super) fn pause(&mut self, millis: u64) {
        let then = self.now() + millis;
        loop {
            let due = self.under_way.iter().map(|one| one.due).enumerate();
            let next = due.min_by_key(|(_, due)| *due);
            let Some((at, due)) = next.filter(|(_, due)| *due <= then) else {
                break;
            };
            self.advance_to(due);
            if self.runs(at) {
                self.mark_answered(at);
                self.end(at);
            } else {
                self.give_up(at);
            }
        }
        self.advance_to(then);
    }

    fn advance_to(&self, then: u64) {
        let by = then.saturating_sub(self.now());
        self.clock.advance(Duration::from_millis(by));
    }

    /// Whether the server of a request under way runs.
    pub(super) fn runs(&self, at: usize) -> bool {
        !self.is_frozen[self.history[self.under_way[at].at].server]
    }

    /// Marks a request as answered. Its server runs, so it has read all requests that
    /// were given up before this one was sent.
    pub(super) fn mark_answered(&mut self, at: usize) {
        let now = self.now();
        let request = &mut self.under_way[at];
        request.permit.mark_answered();
        let (at, answered) = (request.at, &self.history[request.at]);
        let (upstream, server, from) = (answered.upstream, answered.server, answered.from);
        let arrived = self.given_up.extract_if(.., |given_up| {
            let sent = &self.history[given_up.at];
            sent.upstream == upstream && sent.server == server && given_up.since < from
        });
        let arrived: Vec<_> = arrived.map(|given_up| given_up.at).collect();
        assert!(!arrived.contains(&at));
        for at in arrived {
            if self.history[at].to.is_none() {
                self.limit_arrival(at, now);
            }
        }
    }

    /// A request that was given up is counted within [`ARRIVAL_LIMIT`] of now, if at all.
    fn limit_arrival(&mut self, at: usize, now: u64) {
        let latest = u64::try_from(ARRIVAL_LIMIT.as_millis()).unwrap();
        let sent = &mut self.history[at];
        sent.to = Some(now + latest);
        sent.unanswered = Some(now + unanswered_after_end());
    }

    /// Fails a request: the server closed its connection, or it was never sent.
    pub(super) fn fail(&mut self, at: usize) {
        self.under_way[at].permit.mark_resolved();
        self.end(at);
    }

    /// Drops the permit of a request under way. Returns its index in the history.
    pub(super) fn end(&mut self, at: usize) -> usize {
        let request = self.under_way.swap_remove(at);
        let now = self.now();
        self.record_end(request.at, now);
        let sent = &self.history[request.at];
        let state = &mut self.upstreams[sent.upstream].states[sent.budget];
        if let Some(suspension) = &mut state.suspension
            && suspension.tried_by == Some(request.at)
        {
            *suspension = KeySuspension {
                until: now + 60_000,
                tried_by: None,
                ..*suspension
            };
        }
        drop(request.permit);
        request.at
    }

    fn record_end(&mut self, at: usize, now: u64) {
        let sent = &mut self.history[at];
        sent.to = Some(now);
        let is_slow = now - sent.from >= 1_000;
        let more = if is_slow { unanswered_after_end() } else { 0 };
        sent.unanswered = Some(now + more);
    }

    /// Gives a request up. The upstream may count it until its connection ends.
    pub(super) fn give_up(&mut self, at: usize) {
        let now = self.now();
        let connection = self.under_way[at].connection.clone();
        let at = self.end(at);
        if self.bounds(self.history[at].budget) == (usize::MAX, usize::MAX) {
            // Without a limit it does not matter how long it counts.
            self.limit_arrival(at, now);
        } else {
            let sent = &mut self.history[at];
            (sent.to, sent.unanswered) = (None, None);
        }
        self.given_up.push(PendingArrival {
            connection,
            at,
            since: now,
        });
    }

    /// The server closes a connection: it reads no more of its requests.
    fn close(&mut self, connection: &Connection) {
        let now = self.now();
        connection.ended();
        let is_it = |other: &Connection| other.is(connection);
        while let Some(at) = self.under_way.iter().position(|one| is_it(&one.connection)) {
            self.fail(at);
        }
        let ended = self.given_up.extract_if(.., |one| is_it(&one.connection));
        for at in ended.map(|one| one.at).collect::<Vec<_>>() {
            // It arrives no more, even within the time that an answer allowed for it.
            if self.history[at].to.is_none_or(|to| to > now) {
                self.record_end(at, now);
            }
        }
        for upstream in &mut self.upstreams {
            for shared in upstream.shared.iter_mut().filter(|shared| is_it(shared)) {
                *shared = Connection::default();
            }
        }
    }

    /// Closes the connection of a request that was given up, if its server runs.
    pub(super) fn close_given_up(&mut self, at: usize) {
        let Some(given_up) = self.given_up.get(at % self.given_up.len().max(1)) else {
            return;
        };
        if !self.is_frozen[self.history[given_up.at].server] {
            let connection = given_up.connection.clone();
            self.close(&connection);
        }
    }

    /// Kills a server and starts it again.
    pub(super) fn restart(&mut self, server: usize) {
        self.is_frozen[server] = false;
        let is_its = |at: &usize| self.history[*at].server == server;
        let under_way = self.under_way.iter().map(|one| (one.at, &one.connection));
        let given_up = self.given_up.iter().map(|one| (one.at, &one.connection));
        let all = under_way.chain(given_up).filter(|(at, _)| is_its(at));
        let all: Vec<_> = all.map(|(_, connection)| connection.clone()).collect();
        for connection in &all {
            self.close(connection);
        }
    }
}
