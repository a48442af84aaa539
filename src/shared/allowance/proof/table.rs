//! The table of rules: each with a kind of world in which the budget is exceeded
//! without it.

use super::faults::Action;
use super::weather::{CUT, LONG_CUT, Weather};
use crate::shared::allowance::rules::Rule;

/// The faults of a table row: these, and demand that moves.
macro_rules! faults {
    ($($action:expr => $weight:expr),*) => {
        &[$(($action, $weight),)* (Action::MoveDemand, 1), (Action::Burst, 1)]
    };
}

/// Each rule with its world. [`Rule::ClaimsAccepted`] is missing: without it, the budget
/// is not exceeded but wasted.
pub(super) fn rows() -> Vec<(Rule, Weather)> {
    let mut rows = by_chance();
    rows.extend(staged_requests());
    rows.extend(staged_engines());
    rows
}

/// These faults, at any time.
fn chance(name: &'static str, faults: Faults) -> Weather {
    Weather {
        name,
        faults,
        longest: (1, 3),
        ..Weather::fair()
    }
}

/// Little demand and no faults, but for what is staged once.
fn staged(name: &'static str, staged: Staged) -> Weather {
    Weather {
        replicas: (2, 4),
        ratio: 2,
        demand: 30,
        is_even: true,
        script: vec![(200, 300, Action::Then(staged))],
        ..chance(name, &[])
    }
}

fn by_chance() -> Vec<(Rule, Weather)> {
    let pauses = faults![Action::Pause => 4];
    let suspensions = faults![Action::Suspend => 4];
    let kills = faults![Action::Kill { knows: 0 } => 1];
    let kills_and_cuts = faults![CUT => 2, Action::Kill { knows: 50 } => 1];
    let flushes = faults![Action::Flush => 1, CUT => 2];
    let late = Weather {
        name: "everything; messages are late or repeated",
        ..Weather::storm()
    };
    let restarts = Weather {
        fault_every: (1, 8),
        ..chance(
            "restarts from an old dump",
            faults![Action::Restart => 1, CUT => 2],
        )
    };
    let surplus = Weather {
        surplus: 1,
        ..chance("one process more than configured", faults![])
    };
    let splits = Weather {
        copies: &[1, 2],
        ..chance(
            "splits",
            faults![
                Action::Split { back: true } => 3,
                Action::Split { back: false } => 3,
                CUT => 1
            ],
        )
    };
    let suspended = chance("suspended machines", suspensions);
    vec![
        (Rule::ReportWhatCounts, chance("demand moves", faults![])),
        (Rule::SequenceNumbers, late),
        (Rule::LeaseCheckedAtTake, chance("processes stop", pauses)),
        (Rule::SilentRowsStay, chance("kills, cuts", kills_and_cuts)),
        (Rule::LifeOfEngine, restarts),
        (Rule::FollowBeforeRaise, chance("flushes, cuts", flushes)),
        (Rule::PredecessorCounts, chance("kills", kills)),
        (Rule::MajorityRaises, splits.clone()),
        (Rule::FloorsReserved, chance("cuts", faults![LONG_CUT => 1])),
        (Rule::FloorsOfAllSeen, surplus),
        (Rule::ClockRunsInSuspend, suspended.clone()),
        (Rule::MajorityExtends, splits),
        (Rule::ClaimsRaiseNothing, suspended),
    ]
}

fn staged_requests() -> Vec<(Rule, Weather)> {
    let lost = staged("replies are lost just when demand moves", DEAF_WHEN_LOWERED);
    let slow_messages = Weather {
        delay: (20_000, 150_000),
        timeout: (400, 500),
        replicas: (2, 2),
        ..staged("a process stops while a reply is due", HOLD_THEN_PAUSE)
    };
    let slow_writes = Weather {
        slow_writes: 90,
        replicas: (2, 2),
        demand: 5,
        ..staged("a process stops with unused permits", BURST_THEN_PAUSE)
    };
    let long_answers = Weather {
        ratio: 1,
        longest: (49, 50),
        latency: (47_000, 49_000),
        slow_answers: 0,
        prompt: [0, 100],
        replicas: (2, 2),
        demand: 2,
        ..staged("answers take 50 s, a process is cut off", BURST_THEN_CUT)
    };
    let late_removal = Weather {
        replicas: (3, 3),
        longest: (1, 2),
        resent: 100,
        ..staged("a removal arrives late", REMOVAL_COMES_LATE)
    };
    vec![
        (Rule::LowerFirst, lost),
        (Rule::LeaseFromSend, slow_messages),
        (Rule::PermitsAge, slow_writes),
        (Rule::LongestRequestInQ, long_answers),
        (Rule::RemovalComparesSequence, late_removal),
    ]
}

fn staged_engines() -> Vec<(Rule, Weather)> {
    let gap = Weather {
        copies: &[2],
        replicas: (3, 4),
        demand: 200,
        split_lasts: (130, 150),
        ..staged("processes are cut off while a split lasts", CUT_AT_SPLIT)
    };
    let new_processes = Weather {
        copies: &[2],
        replicas: (3, 4),
        demand: 200,
        split_lasts: (150, 300),
        ..staged("processes start in a split", SPLIT_AND_STARTS)
    };
    let swaps = Weather {
        copies: &[1, 2],
        ..staged("a copy is the primary for a moment", SWAP_AFTER_RAISE)
    };
    let lost_rows = Weather {
        copies: &[2],
        demand: 200,
        split_lasts: (130, 150),
        ..staged("rows are deleted just before a split", FLUSH_THEN_SPLIT)
    };
    vec![
        (Rule::GapEndsFollowing, gap),
        (Rule::CopiesInherited, new_processes),
        (Rule::ReplicationId, swaps),
        (Rule::CopiesRemembered, lost_rows),
    ]
}

type Faults = &'static [(Action, u64)];

type Staged = &'static [(u64, u64, Action)];

const DEAF_WHEN_LOWERED: Staged = &[
    (0, 0, Action::BurstAt(0)),
    (60_500, 63_500, Action::DeafAt(0, 3, 4)),
    (61_500, 64_500, Action::BurstAt(1)),
    (61_500, 64_500, Action::BurstAt(0)),
];

const HOLD_THEN_PAUSE: Staged = &[
    (0, 0, Action::BurstAt(0)),
    (2000, 10_000, Action::PauseAt(0, 110, 130)),
    (100_000, 104_000, Action::BurstAt(1)),
    (104_000, 110_000, Action::BurstAt(1)),
];

const FLUSH_THEN_SPLIT: Staged = &[
    (0, 0, Action::Flush),
    (0, 500, Action::Split { back: false }),
];

const BURST_THEN_PAUSE: Staged = &[
    (0, 0, Action::BurstAt(0)),
    (800, 2500, Action::PauseAt(0, 95, 115)),
    (94_000, 96_000, Action::BurstAt(1)),
    (97_000, 100_000, Action::BurstAt(1)),
    (101_000, 105_000, Action::BurstAt(1)),
    (105_000, 110_000, Action::BurstAt(1)),
];

const BURST_THEN_CUT: Staged = &[
    (0, 0, Action::BurstAt(0)),
    (1500, 4000, Action::CutAt(0, 130, 150)),
    (84_000, 86_000, Action::BurstAt(1)),
    (86_000, 90_000, Action::BurstAt(1)),
    (90_000, 94_000, Action::BurstAt(1)),
    (94_000, 98_000, Action::BurstAt(1)),
];

const CUT_AT_SPLIT: Staged = &[
    (0, 1000, Action::Split { back: true }),
    (0, 1000, Action::CutAt(0, 150, 190)),
    (0, 1000, Action::CutAt(1, 150, 190)),
];

const SPLIT_AND_STARTS: Staged = &[
    (0, 1000, Action::Split { back: false }),
    (16_000, 20_000, Action::Kill { knows: 0 }),
    (16_000, 20_000, Action::Kill { knows: 0 }),
];

const REMOVAL_COMES_LATE: Staged = &[
    (1000, 2000, Action::CutAt(0, 89, 92)),
    (88_000, 91_000, Action::CutAt(1, 135, 140)),
    (195_000, 205_000, Action::BurstAt(0)),
    (218_000, 222_000, Action::BurstAt(2)),
];

const SWAP_AFTER_RAISE: Staged = &[
    (0, 0, Action::BurstAt(0)),
    (1500, 3000, Action::SwapBack),
    (1500, 2500, Action::CutAt(0, 5, 9)),
    (2500, 3500, Action::BurstAt(1)),
];
