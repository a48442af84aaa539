//! The steps that run in a process of their own.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::Task;
use crate::subjects::{self, Failure, Subject};
use crate::watch;
use crate::work::{BATCH, Bodies, REMOVE_BEHIND, key, removal};

pub fn step(step: &str, task: &Task) -> Result<(), Failure> {
    let bodies = Bodies::new();
    let before = Instant::now();
    let mut store = subjects::open(&task.subject, &task.directory, task.max_bytes)?;
    let opened = before.elapsed();
    match step {
        "fill" => write(store.as_mut(), &bodies, 0, task.entries)?,
        "churn" => write(store.as_mut(), &bodies, task.count, u64::MAX)?,
        "open" => {
            let pid = std::process::id();
            let memory = [watch::memory(pid, "VmHWM:"), watch::memory(pid, "RssAnon:")];
            println!("{} {} {}", opened.as_micros(), memory[0], memory[1]);
            verify(store.as_ref(), &bodies)?;
        }
        "read" => read(store.as_ref(), &bodies, task.count)?,
        "check" => check(store.as_mut(), &bodies, task.entries)?,
        other => return Err(format!("no step {other}").into()),
    }
    // Dropping may take long or fail; the steps that need it have synced.
    drop(store);
    Ok(())
}

/// Puts entries and removes some of them, and says on stdout what is safe from a kill.
fn write(store: &mut dyn Subject, bodies: &Bodies, from: u64, count: u64) -> Result<(), Failure> {
    let mut output = std::io::stdout();
    let mut synced = Instant::now();
    let mut next = from;
    while next - from < count {
        let end = (next + BATCH).min(from.saturating_add(count));
        let batch: Vec<_> = (next..end).map(|n| (key(n), bodies.value(n))).collect();
        store.put_batch(&batch)?;
        // Removals are durable one by one; the fill leaves most of them out.
        let removals = (next..end).filter_map(removal);
        for n in removals.take(if count == u64::MAX { 64 } else { 1 }) {
            if count == u64::MAX || next.is_multiple_of(BATCH * 64) {
                store.remove(&key(n))?;
                writeln!(output, "removed {n}")?;
            }
        }
        next = end;
        if synced.elapsed() > Duration::from_secs(1) {
            store.sync()?;
            writeln!(output, "synced {next}")?;
            synced = Instant::now();
        }
    }
    store.sync()?;
    writeln!(output, "synced {next}")?;
    Ok(())
}

/// Reads what must be there, and what must not. Its input names the entries: the first
/// and the one after the last of those that were synced, then the removed ones.
fn verify(store: &dyn Subject, bodies: &Bodies) -> Result<(), Failure> {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input)?;
    let numbers: Vec<u64> = input.lines().filter_map(|line| line.parse().ok()).collect();
    let [first, end, removed @ ..] = &numbers[..] else {
        return Err("no entries are named".into());
    };
    let (mut missing, mut wrong, mut back) = (0, 0, 0);
    for n in *first..*end {
        // What was removed at the very end may be read as removed already.
        if removal(n + REMOVE_BEHIND).is_some() {
            continue;
        }
        match store.get(&key(n))? {
            None => missing += 1,
            Some(value) => wrong += u64::from(!bodies.is_value(n, &value)),
        }
    }
    for n in removed {
        back += u64::from(store.get(&key(*n))?.is_some());
    }
    println!("{missing} {wrong} {back}");
    Ok(())
}

/// Times single gets of keys that are stored, by Zipf's law and evenly.
fn read(store: &dyn Subject, bodies: &Bodies, last: u64) -> Result<(), Failure> {
    let mut oldest = 0;
    let (mut low, mut high) = (0, last);
    while low < high {
        oldest = (low + high) / 2;
        let near =
            (oldest..(oldest + 8).min(last)).any(|n| matches!(store.get(&key(n)), Ok(Some(_))));
        if near {
            high = oldest
        } else {
            low = oldest + 1
        }
    }
    let held = last.saturating_sub(oldest).max(1);
    println!("held {held}");
    let mut random = fastrand::Rng::with_seed(3);
    for law in ["zipf", "even"] {
        let mut pick = || {
            let rank = match law {
                "zipf" => (held as f64).powf(random.f64()) as u64 - 1,
                _ => random.u64(..held),
            };
            last - 1 - rank.min(held - 1)
        };
        for _ in 0..20_000 {
            store.get(&key(pick()))?;
        }
        let (mut times, mut hits) = (Vec::new(), 0);
        for _ in 0..100_000 {
            let n = pick();
            let before = Instant::now();
            let value = store.get(&key(n))?;
            times.push(before.elapsed().as_nanos());
            if let Some(value) = value {
                hits += 1;
                assert!(bodies.is_value(n, &value), "a wrong value of {n}");
            }
        }
        times.sort_unstable();
        let at = |part: f64| times[(times.len() as f64 * part) as usize] as f64 / 1000.0;
        println!(
            "{law}: median {:.1} us, p99 {:.1} us, p99.9 {:.1} us, {} % hits",
            at(0.5),
            at(0.99),
            at(0.999),
            hits / 1000
        );
    }
    let mut times = Vec::new();
    for n in 0..20_000 {
        let before = Instant::now();
        store.get(&key(u64::MAX / 2 + n))?;
        times.push(before.elapsed().as_nanos());
    }
    times.sort_unstable();
    println!("absent: median {:.1} us", times[10_000] as f64 / 1000.0);
    Ok(())
}

/// After damage: everything is read, then written and read again.
fn check(store: &mut dyn Subject, bodies: &Bodies, entries: u64) -> Result<(), Failure> {
    let (mut failed, mut wrong, mut present) = (0u64, 0u64, 0u64);
    for n in 0..entries {
        match store.get(&key(n)) {
            Ok(None) => {}
            Ok(Some(value)) if bodies.is_value(n, &value) => present += 1,
            Ok(Some(_)) => wrong += 1,
            Err(_) => failed += 1,
        }
    }
    let batch: Vec<_> = (entries..entries + 256)
        .map(|n| (key(n), bodies.value(n)))
        .collect();
    let mut refused = 0;
    for part in batch.chunks(64) {
        refused += u64::from(store.put_batch(part).is_err());
    }
    for n in entries..entries + 16 {
        refused += u64::from(store.remove(&key(n)).is_err());
    }
    refused += u64::from(store.sync().is_err());
    let back = (entries..entries + 16)
        .filter(|n| matches!(store.get(&key(*n)), Ok(Some(_))))
        .count();
    println!("{present} {failed} {wrong} {refused} {back}");
    Ok(())
}
