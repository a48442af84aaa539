//! The servers of the engine: a primary, its copies, and what happens to them.

use std::collections::VecDeque;
use std::time::Duration;

use super::upstream::{SECOND, Time};
use crate::shared::allowance::rules::{Rule, has};
use crate::shared::allowance::{Reply, Report};
use crate::shared::engine::model::{self, Rows};

/// How long old copies of the rows are kept, for restarts from an old dump.
const REMEMBERED: usize = 31;
/// The rows expire this long after the last report.
const EXPIRY: i64 = 86_400;

/// One server.
pub(super) struct Node {
    run: u64,
    replication: u64,
    life: String,
    /// The primary that it follows, or itself.
    pub(super) follows: usize,
    /// Whether it reaches the one it follows.
    pub(super) is_linked: bool,
    /// It answers nothing before this time.
    pub(super) down_until: Time,
    /// It is stopped and answers all that has arrived at this time.
    pub(super) stopped_until: Time,
    pub(super) rows: Option<Rows>,
    /// What the rows were at each of the last seconds, the oldest first.
    history: VecDeque<Option<Rows>>,
    /// Its time of day less the true time, in seconds.
    clock: i64,
    /// When copies acknowledged last that cannot be reached any more, by its own time
    /// of day.
    unreachable: Vec<i64>,
    last_report: i64,
}

impl Node {
    fn wall(&self, now: Time) -> i64 {
        (now / SECOND) as i64 + 1_700_000_000 + self.clock
    }

    fn renamed(&mut self) {
        self.life = match has(Rule::ReplicationId) {
            true => format!("{}-{}", self.run, self.replication),
            false => self.run.to_string(),
        };
    }

    /// Its clock is set by so many seconds.
    pub(super) fn set_clock(&mut self, by: i64) {
        self.clock += by;
    }
}

/// All servers. The first is the primary at the start.
pub(super) struct Engines {
    pub(super) nodes: Vec<Node>,
    names: u64,
}

impl Engines {
    pub(super) fn new(copies: usize) -> Self {
        let mut engines = Self {
            nodes: Vec::new(),
            names: 0,
        };
        for _ in 0..=copies {
            engines.nodes.push(Node {
                run: 0,
                replication: 0,
                life: String::new(),
                follows: 0,
                is_linked: true,
                down_until: 0,
                stopped_until: 0,
                rows: None,
                history: VecDeque::new(),
                clock: 0,
                unreachable: Vec::new(),
                last_report: 0,
            });
            let last = engines.nodes.len() - 1;
            engines.restart(last, None);
        }
        engines
    }

    fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    /// The server starts anew. With `back`, it loads what it was so many seconds ago.
    pub(super) fn restart(&mut self, at: usize, back: Option<usize>) {
        let (run, replication) = (self.name(), self.name());
        let rows = back.and_then(|back| self.as_of(at, back));
        let node = &mut self.nodes[at];
        (node.run, node.replication, node.rows) = (run, replication, rows);
        node.unreachable.clear();
        node.renamed();
    }

    /// The server becomes a primary, with rows that it has copied so many seconds ago.
    pub(super) fn promote(&mut self, at: usize, from: usize, back: usize) {
        let rows = match back {
            0 => self.nodes[from].rows.clone(),
            back => self.as_of(from, back),
        };
        let replication = self.name();
        let last_report = self.nodes[from].last_report;
        let node = &mut self.nodes[at];
        (node.replication, node.rows, node.follows) = (replication, rows, at);
        node.last_report = last_report;
        node.unreachable.clear();
        node.renamed();
    }

    /// The server follows another one, and copies its rows.
    pub(super) fn follow(&mut self, at: usize, primary: usize) {
        let node = &mut self.nodes[at];
        (node.follows, node.is_linked) = (primary, true);
    }

    /// The primary loses a copy without noticing at once.
    pub(super) fn part(&mut self, copy: usize, now: Time) {
        let primary = self.nodes[copy].follows;
        if primary != copy && std::mem::take(&mut self.nodes[copy].is_linked) {
            let wall = self.nodes[primary].wall(now);
            self.nodes[primary].unreachable.push(wall);
        }
    }

    fn as_of(&self, at: usize, back: usize) -> Option<Rows> {
        let history = &self.nodes[at].history;
        let index = history.len().saturating_sub(back.max(1));
        history.get(index).cloned().flatten()
    }

    /// Remembers the rows of each primary; called every second.
    pub(super) fn tick(&mut self) {
        for (at, node) in self.nodes.iter_mut().enumerate() {
            if node.follows == at {
                node.history.push_back(node.rows.clone());
                if node.history.len() > REMEMBERED {
                    node.history.pop_front();
                }
            }
        }
    }

    /// The copies that a server believes to have.
    fn online(&self, at: usize, now: Time) -> i64 {
        let node = &self.nodes[at];
        let wall = node.wall(now);
        let others = self.nodes.iter().enumerate();
        let linked = others.filter(|(other, copy)| {
            *other != at && copy.follows == at && copy.is_linked && copy.down_until <= now
        });
        let recent = node
            .unreachable
            .iter()
            .filter(|last| (0..=2).contains(&(wall - **last)));
        (linked.count() + recent.count()) as i64
    }

    /// The reply of a server, if it is a primary and runs.
    pub(super) fn report(&mut self, at: usize, now: Time, report: &Report) -> Option<Reply> {
        if self.nodes[at].follows != at || self.nodes[at].down_until > now {
            return None;
        }
        let online = self.online(at, now);
        let node = &mut self.nodes[at];
        let wall = node.wall(now);
        if wall - node.last_report > EXPIRY {
            node.rows = None;
        }
        node.last_report = wall;
        let server = model::ServerState {
            life: &node.life,
            online,
            time: Duration::from_secs(wall as u64) + Duration::from_micros(now % SECOND),
        };
        Some(model::report(&mut node.rows, server, report))
    }
}
