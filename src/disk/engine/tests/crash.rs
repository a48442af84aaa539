//! A process that is killed as it writes, again and again, with damage in between.
//!
//! It says on stdout what it is about to do and what it has done. After the kill, each
//! key must have a value that it may have. `ORDGATE_KILLS` sets how often; 20 if unset.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use super::super::Engine;
use super::damage::hurt;
use super::faults::DIRECTORY;
use super::{SMALL, allocated, key, open, value};

/// How many keys there are. Few, so that each is written often.
const KEYS: u64 = 300;

/// The number that the process begins to count its versions with.
const FIRST: &str = "ORDGATE_ENGINE_TEST_FIRST";

/// The bound that it has.
const MAX_BYTES: &str = "ORDGATE_ENGINE_TEST_MAX_BYTES";

/// A version of a value: it begins with the key's number, so that versions of two
/// keys differ.
fn version(key: u64, version: u64) -> Vec<u8> {
    value(key << 40 | version)
}

/// What a key may have.
#[derive(Clone, Debug, Default)]
struct Allowed {
    /// The version that was stored last; `None` if it was removed, or never stored.
    stored: Option<u64>,
    /// What the process was about to do when it was killed.
    pending: Vec<Option<u64>>,
    /// Whether something stored must be there: it was neither damaged nor evicted.
    is_certain: bool,
}

#[test]
fn a_process_killed_while_it_writes_loses_and_revives_nothing() {
    let kills = std::env::var("ORDGATE_KILLS");
    let kills: u32 = kills.map_or(20, |kills| kills.parse().expect("a number"));
    let mut random = fastrand::Rng::with_seed(2026);
    let directory = tempfile::tempdir().unwrap();
    let mut model: HashMap<u64, Allowed> = HashMap::new();
    let (mut first, mut present) = (0, 0);
    for round in 0..kills {
        // All versions of all keys fit the larger bound for some time.
        let max_bytes = SMALL << random.u8(0..6);
        let done = run_and_kill(directory.path(), max_bytes, first, &mut random, &mut model);
        first += done + 10_000;
        let damaged = random.u8(..3) == 0;
        if damaged {
            hurt(directory.path(), &mut random);
        }
        let (engine, recovered) = open(directory.path(), max_bytes);
        assert!(allocated(directory.path()) <= max_bytes, "round {round}");
        assert!(damaged || recovered.discarded == 0, "{recovered:?}");
        let can_miss = damaged || may_evict(max_bytes);
        present += check(&engine, &mut model, can_miss, round);
        assert!(damaged || engine.unreadable() == 0, "round {round}");
    }
    assert!(
        present > u64::from(kills) * 20,
        "{present} were there at all"
    );
}

/// Whether a run with this bound may evict entries that still count.
fn may_evict(max_bytes: u64) -> bool {
    max_bytes < 32 * SMALL
}

/// Reads all keys. Returns how many are there.
fn check(engine: &Engine, model: &mut HashMap<u64, Allowed>, can_miss: bool, round: u32) -> u64 {
    let mut present = 0;
    for (number, allowed) in model {
        let found = engine.get(&key(*number)).unwrap();
        let mut may_be = allowed.pending.clone();
        may_be.push(allowed.stored);
        let which = may_be.iter().find(|may_be| {
            let may_be = may_be.map(|at| version(*number, at));
            may_be == found
        });
        let is_missing = found.is_none() && (can_miss || !allowed.is_certain);
        assert!(
            which.is_some() || is_missing,
            "round {round}, key {number}: {allowed:?}, found {:?}",
            found.map(|found| u64::from_le_bytes(found[..8].try_into().unwrap()) & 0xff_ffff_ffff),
        );
        present += u64::from(which.is_some_and(Option::is_some));
        // What is absent now stays so.
        *allowed = Allowed {
            stored: which.copied().flatten(),
            pending: Vec::new(),
            is_certain: true,
        };
    }
    present
}

/// Starts the process that writes, kills it, and notes what it said. Returns how many
/// versions it has put.
fn run_and_kill(
    directory: &Path,
    max_bytes: u64,
    first: u64,
    random: &mut fastrand::Rng,
    model: &mut HashMap<u64, Allowed>,
) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .arg("disk::engine::tests::crash::writes_until_it_is_killed")
        .env(DIRECTORY, directory)
        .env(FIRST, first.to_string())
        .env(MAX_BYTES, max_bytes.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = random.u32(1..600);
    let mut last = first;
    let mut read = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| -> u64 { words[at].parse().unwrap() };
        match words[0] {
            // About to put a version under each of some keys.
            "put" => {
                last = number(1);
                for at in 2..words.len() {
                    model
                        .entry(number(at))
                        .or_default()
                        .pending
                        .push(Some(last));
                }
            }
            "remove" => model.entry(number(1)).or_default().pending.push(None),
            // What was pending is done.
            "done" => {
                for allowed in model
                    .values_mut()
                    .filter(|allowed| !allowed.pending.is_empty())
                {
                    allowed.stored = allowed.pending.pop().flatten();
                    allowed.pending.clear();
                    allowed.is_certain = !may_evict(max_bytes);
                }
            }
            _ => continue,
        }
        read += 1;
        if read == lines {
            // The process is ahead of what was read: this falls anywhere.
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(read >= lines, "the process ended after {read} lines");
    last - first
}

#[test]
#[ignore = "runs in the process that another test starts"]
fn writes_until_it_is_killed() {
    let number = |name| -> u64 { std::env::var(name).unwrap().parse().unwrap() };
    let directory = std::env::var_os(DIRECTORY).expect("the test that starts this sets it");
    let (engine, _) = open(directory.as_ref(), number(MAX_BYTES));
    let first = number(FIRST);
    let mut random = fastrand::Rng::with_seed(first);
    let mut output = std::io::stdout();
    let mut say = |text: String| output.write_all(text.as_bytes()).unwrap();
    say("\n".to_owned());
    for at in first.. {
        match random.u8(..32) {
            0 | 1 => {
                let removed = random.u64(..KEYS);
                say(format!("remove {removed}\n"));
                engine.remove(&key(removed)).unwrap();
            }
            2 => engine.sync().unwrap(),
            _ => {
                let mut keys: Vec<_> = (0..random.u64(1..40)).map(|_| random.u64(..KEYS)).collect();
                keys.sort_unstable();
                keys.dedup();
                let named = keys
                    .iter()
                    .fold(String::new(), |named, key| format!("{named} {key}"));
                say(format!("put {at}{named}\n"));
                let batch: Vec<_> = keys.iter().map(|n| (key(*n), version(*n, at))).collect();
                engine.put_batch(&batch).unwrap();
            }
        }
        say("done\n".to_owned());
    }
}
