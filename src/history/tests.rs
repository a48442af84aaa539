//! What becomes of readings, with the time as an argument.

use serde_json::Value;

use super::*;
use crate::telemetry::process::ProcessFigures;

/// A reading with this many hits and misses.
fn reading(hits: u64, misses: u64) -> Reading {
    let mut reading = Reading::default();
    reading.requests[0] = hits;
    reading.requests[2] = misses;
    reading
}

fn at(seconds: u64) -> (Moment, SystemTime) {
    (
        Moment::from_nanos(1 << 60) + Duration::from_secs(seconds),
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds),
    )
}

/// The history of readings at these seconds.
fn history(readings: impl IntoIterator<Item = (u64, Reading)>) -> ProcessHistory {
    let history = ProcessHistory::default();
    for (seconds, reading) in readings {
        let (now, wall) = at(seconds);
        history.add(reading, now, wall);
    }
    history
}

fn json(history: &ProcessHistory, since: Option<u64>) -> Value {
    serde_json::from_str(&history.json(since)).unwrap()
}

#[test]
fn a_row_has_the_rates_of_its_interval() {
    // the readings, and the last row of hits, misses and hit ratio
    let rows = [
        (
            vec![(0, reading(0, 0)), (2, reading(30, 10))],
            [15.0, 5.0, 0.75],
        ),
        // A longer interval.
        (
            vec![(0, reading(0, 0)), (4, reading(30, 10))],
            [7.5, 2.5, 0.75],
        ),
        // Counters that begin anew.
        (
            vec![(0, reading(100, 100)), (2, reading(10, 102))],
            [0.0, 1.0, 0.0],
        ),
    ];
    for (readings, [hits, misses, ratio]) in rows {
        let series = json(&history(readings.clone()), None)["series"].clone();
        let last = |name: &str| series[name].as_array().unwrap().last().unwrap().as_f64();
        assert_eq!(last("hit"), Some(hits), "{readings:?}");
        assert_eq!(last("miss"), Some(misses), "{readings:?}");
        assert_eq!(last("hit_ratio"), Some(ratio), "{readings:?}");
        assert_eq!(last("budget_left"), None, "no key has a limit");
    }
}

#[test]
fn gauges_are_what_they_were() {
    let process = |seconds, resident| {
        Some(ProcessFigures {
            cpu_seconds: seconds,
            resident_memory_bytes: resident,
            ..ProcessFigures::default()
        })
    };
    let first = Reading {
        process: process(10.0, 1 << 20),
        ..Reading::default()
    };
    let second = Reading {
        budget: Some((120, 500)),
        queue: 3,
        in_flight: 4,
        connections: 5,
        cache_bytes: 3 << 19,
        process: process(11.0, 20 << 20),
        tip: Some(912_345),
        ..Reading::default()
    };
    let series = json(&history([(0, first), (2, second)]), None)["series"].clone();
    for (name, expected) in [
        ("budget_left", 120.0),
        ("budget", 500.0),
        ("queue", 3.0),
        ("in_flight", 4.0),
        ("connections", 5.0),
        ("cache_mib", 1.5),
        ("cpu", 0.5),
        ("rss_mib", 20.0),
        ("tip_height", 912_345.0),
    ] {
        assert_eq!(series[name][0].as_f64(), Some(expected), "{name}");
    }
    assert_eq!(
        series["hit_ratio"][0],
        Value::Null,
        "there were no requests"
    );
    let named = series.as_object().unwrap();
    assert_eq!(named.len(), SERIES);
}
