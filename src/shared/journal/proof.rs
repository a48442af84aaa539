//! The simulation of the journal: some replicas that purge, and an engine that fails in
//! every way that is expected. It uses the machine and the model of the script as they are.
//!
//! Everything follows from a seed. `ORDGATE_JOURNAL_SEEDS` plays more of them; a failure
//! names the seed.

mod weather;
mod world;

use weather::JournalWeather;
use world::JournalWorld;

use super::rules::{JournalRule, leave_out};

/// How many seeds each row of the table may play until a purge is missed.
const ROW_SEEDS: u64 = 300;

/// Plays one seed; the result is the first fault.
fn play(weather: &JournalWeather, seed: u64) -> Option<String> {
    let mut world = JournalWorld::new(weather.clone(), seed);
    world.run();
    world.fault
}

fn seeds(usually: u64) -> u64 {
    let given = std::env::var("ORDGATE_JOURNAL_SEEDS").ok();
    given.map_or(usually, |given| given.parse().unwrap())
}

#[test]
fn every_purge_reaches_every_replica() {
    for seed in 0..seeds(25) {
        for weather in [
            JournalWeather::storm(),
            JournalWeather::restored(),
            JournalWeather::lost_hosts(),
        ] {
            if let Some(fault) = play(&weather, seed) {
                panic!("seed {seed} ({}): {fault}", weather.name);
            }
        }
    }
}

/// While the engine loses nothing, nobody purges more than what was purged, whatever
/// becomes of messages and replicas.
#[test]
fn no_gap_is_found_where_there_is_none() {
    let mut purges = 0;
    for seed in 0..seeds(10) {
        let mut world = JournalWorld::new(JournalWeather::lasting_engine(), seed);
        world.run();
        assert_eq!(world.fault, None, "seed {seed}");
        assert_eq!(world.everything, 0, "seed {seed}");
        purges += world.purges();
    }
    assert!(purges > 150, "{purges}");
}

/// Without any one rule, a purge is missed; with all of them, none is in the same world.
#[test]
fn each_rule_is_needed() {
    let mut wrong = Vec::new();
    for (rule, weather) in [
        (JournalRule::LifeOfEngine, JournalWeather::storm()),
        (
            JournalRule::LostRecordsBeginAnew,
            JournalWeather::restored(),
        ),
        (JournalRule::KeptUntilRead, JournalWeather::storm()),
        (JournalRule::SentAgain, JournalWeather::lost_keys()),
        (JournalRule::ReadFromBeginning, JournalWeather::storm()),
        (JournalRule::GapPurgesEverything, JournalWeather::storm()),
        (
            JournalRule::AbsencePurgesEverything,
            JournalWeather::absence(),
        ),
        (JournalRule::AppliedInGeneration, JournalWeather::storm()),
        (JournalRule::FirstContactApplies, JournalWeather::storm()),
        (
            JournalRule::MissingPurgesEverything,
            JournalWeather::lost_hosts(),
        ),
    ] {
        leave_out(Some(rule));
        let failing = (0..ROW_SEEDS).find_map(|seed| Some((seed, play(&weather, seed)?)));
        leave_out::<JournalRule>(None);
        eprintln!("{rule:?}: {failing:?}");
        match failing {
            None => wrong.push((rule, "not needed".to_owned())),
            Some((seed, _)) => {
                let with_all = play(&weather, seed);
                wrong.extend(with_all.map(|fault| (rule, fault)));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
