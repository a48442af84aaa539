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
            cpu: Duration::from_secs(seconds),
            resident,
            ..ProcessFigures::default()
        })
    };
    let first = Reading {
        process: process(10, 1 << 20),
        ..Reading::default()
    };
    let second = Reading {
        budget: Some((120, 500)),
        queue: 3,
        in_flight: 4,
        connections: 5,
        cache_bytes: 3 << 19,
        process: process(11, 20 << 20),
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

#[test]
fn intervals_without_a_sample_have_no_numbers() {
    let history = history([(0, reading(0, 0)), (2, reading(2, 0)), (10, reading(10, 0))]);
    let hits = json(&history, None)["series"]["hit"].clone();
    assert_eq!(hits.to_string(), "[1,null,null,null,1]");
}

#[test]
fn ten_minutes_are_kept_in_less_than_60_kb() {
    let readings = (0..1000).map(|n| {
        let mut reading = Reading {
            requests: [n * 1_999_997; 9],
            times: crate::meter::LatencyHistogram::default(),
            sent: n * 777_777,
            failed: n * 33_333,
            budget: Some((499, 500)),
            queue: 12_345,
            in_flight: 999,
            connections: 99_999,
            cache_bytes: (n + 1) << 30,
            process: Some(ProcessFigures {
                cpu: Duration::from_millis(n * 7777),
                resident: (n + 1) << 24,
                ..ProcessFigures::default()
            }),
            tip: Some(900_000),
        };
        reading.requests[0] += n * n;
        (n * 2, reading)
    });
    let history = history(readings);
    let text = history.json(None);
    assert!(text.len() < 60_000, "{}", text.len());
    let found = json(&history, None);
    assert_eq!(found["interval_seconds"], 2);
    assert_eq!(found["until"], 1_001_998_000_u64);
    for name in names() {
        let points = found["series"][name].as_array().unwrap();
        assert_eq!(points.len(), POINTS, "{name}");
    }
    // A process that slept for a day.
    let (now, wall) = at(90_000);
    history.add(reading(0, 0), now, wall);
    let points = json(&history, None)["series"]["queue"].clone();
    assert_eq!(points.as_array().unwrap().len(), POINTS);
    assert_eq!(points[298], Value::Null);
    assert_eq!(points[299], 0);
}

#[test]
fn only_later_points_are_sent_where_a_client_has_the_others() {
    let history = history((0..10).map(|n| (n * 2, reading(n * n * 2, 0))));
    // since, points
    for (since, expected) in [
        (None, 9),
        (Some(0), 9),
        (Some(1_000_018_000), 0),
        (Some(1_000_016_000), 1),
        (Some(1_000_015_200), 1),
        (Some(1_000_000_000), 9),
        // The time of day was set back.
        (Some(2_000_000_000), 0),
        (Some(u64::MAX), 0),
    ] {
        let found = json(&history, since);
        let points = found["series"]["hit"].as_array().unwrap().clone();
        assert_eq!(points.len(), expected, "{since:?}");
        assert_eq!(found["until"], 1_000_018_000_u64);
        if expected > 0 {
            assert_eq!(points[expected - 1], 17, "the last one is the latest");
        }
    }
}

#[test]
fn a_process_that_has_just_begun_has_no_points() {
    for readings in [vec![], vec![(0, reading(5, 5))]] {
        let found = json(&history(readings), None);
        assert_eq!(found["until"], Value::Null);
        assert_eq!(found["series"]["hit"], Value::Array(vec![]));
    }
}
