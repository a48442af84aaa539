//! Which connections are silent, and what their ends count.

use tokio::time::advance;

use super::*;

/// A connection of a request that was sent after a second, by when bytes came last
/// and an answer began last, in seconds; 0 for never. The request is given up after
/// ten seconds.
async fn judged(read: u64, answered: u64) -> Judged {
    let connection = Connection::default();
    advance(Duration::from_secs(1)).await;
    let way = SendPath::known(connection.clone());
    connection.0.read.store(read * 1_000_000, Relaxed);
    connection.0.answered.store(answered * 1_000_000, Relaxed);
    advance(Duration::from_secs(10)).await;
    let judged = connection.judge(way.sent);
    let given_up = way.overdue().is_some();
    assert_eq!(given_up, judged == Judged::Silent);
    assert_eq!(connection.is_given_up(), given_up);
    judged
}

#[tokio::test(start_paused = true)]
async fn what_is_silent_what_waits_and_what_answers() {
    for (read, answered, expected) in [
        (0, 0, Judged::Silent),
        // The handshake, and no more.
        (2, 0, Judged::Silent),
        (5, 4, Judged::Silent),
        (7, 0, Judged::Waits),
        (10, 0, Judged::Waits),
        (7, 2, Judged::Answers),
        (10, 10, Judged::Answers),
    ] {
        assert_eq!(judged(read, answered).await, expected, "{read} {answered}");
    }
    // One that has answered, but nothing since.
    let connection = Connection::default();
    connection.answered();
    advance(Duration::from_secs(1)).await;
    let sent = Instant::now();
    advance(Duration::from_secs(10)).await;
    connection.0.read.store(connection.0.age(), Relaxed);
    assert_eq!(connection.judge(sent), Judged::Waits);
}

#[test]
fn its_end_counts_once_and_is_decided_on_once() {
    let (connection, other) = (Connection::default(), Connection::default());
    assert!(connection.count_failure());
    assert!(!connection.clone().count_failure());
    assert!(other.count_failure());
    for (decides, expected) in [(true, true), (false, true)] {
        assert_eq!(connection.goes_on(|| decides), expected);
    }
    assert!(!other.goes_on(|| false));
    assert!(!other.goes_on(|| panic!("it was decided")));
}
