//! A simulation of the whole gateway in mode `chain`, without sockets and in
//! simulated time: blocks are mined and undone, indexers lag, upstream answers come
//! late, out of order or not at all, and clients send random requests. Each answer
//! is checked against the chain's history.
//!
//! Everything follows from a seed, but for the order in which tokio wakes those who wait
//! for one fetch. A failure prints its seed and history; to run
//! it again:
//!
//! ```text
//! ORDGATE_SIM_SEED=17 cargo test --test simulation
//! ORDGATE_SIM_SEEDS=100000 cargo test --test simulation
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "these are tests throughout, helpers included: a failure is a panic"
)]

mod check;
mod dice;
mod plain;
mod play;
mod stand_in;
#[path = "../structure/main.rs"]
mod structure;
mod weather;
mod world;

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use check::Tally;
use play::{history, play};

/// The number of plays, unless the environment sets another.
const SEEDS: u64 = 500;
/// How much of a history is printed.
const LINES: usize = 400;
/// Requests to the upstream for a hundred answers: measured (141), and some air. They are many:
/// a tip comes every few seconds and not every ten minutes, half of the clients ask for what is
/// not there, and one page may need several windows.
const MOST_ASKED: u64 = 150;

pub(crate) fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn every_answer_was_true_and_recent_enough() {
    let (from, to) = match number("ORDGATE_SIM_SEED") {
        Some(seed) => (seed, seed + 1),
        None => (0, number("ORDGATE_SIM_SEEDS").unwrap_or(SEEDS)),
    };
    let next = AtomicU64::new(from);
    let failed = AtomicU64::new(u64::MAX);
    let tally = Mutex::new(Tally::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut own = Tally::default();
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= to || failed.load(Relaxed) < seed {
                        break;
                    }
                    match play(seed, false) {
                        Ok(one) => add(&mut own, one),
                        Err(_) => {
                            failed.fetch_min(seed, Relaxed);
                        }
                    }
                }
                add(&mut tally.lock().unwrap(), own);
            });
        }
    });
    let failed = failed.into_inner();
    if failed < u64::MAX {
        let (Err(fault), history) = history(failed, true) else {
            panic!("seed {failed} fails now and then: it is not all that decides");
        };
        let from = history.len().saturating_sub(LINES);
        let history = history[from..].join("\n");
        panic!(
            "{history}\n\nseed {failed}: {fault}\nplay it again: ORDGATE_SIM_SEED={failed} cargo test --test simulation"
        );
    }
    let tally = tally.into_inner().unwrap();
    // Past the runner, which shows what is printed of tests that fail alone: the
    // shares are to be seen of those that pass.
    writeln!(std::io::stderr(), "{} seeds\n{tally:#?}", to - from).unwrap();
    // Of a few plays the shares say little.
    if to - from >= 500 {
        let count = |what| tally.get(what).copied().unwrap_or_default();
        let answers = count("answers");
        assert!(count("requests to the upstream") * 100 <= MOST_ASKED * answers);
        assert!(count("overtaken") * 1000 <= answers);
    }
}

fn add(to: &mut Tally, other: Tally) {
    for (what, count) in other {
        *to.entry(what).or_default() += count;
    }
}
