//! Which connections are silent, and how their ends count.

use tokio::time::advance;

use super::*;

/// The activity on a connection whose last bytes were received, and last response
/// began, at these seconds; 0 for never. The request is sent after one second, and
/// times out after ten more.
async fn activity(read: u64, answered: u64) -> ConnectionActivity {
    let connection = Connection::default();
    advance(Duration::from_secs(1)).await;
    let path = SendPath::known(connection.clone());
    connection.0.read.store(read * 1_000_000, Relaxed);
    connection.0.answered.store(answered * 1_000_000, Relaxed);
    advance(Duration::from_secs(10)).await;
    let activity = connection.activity_since(path.sent);
    let given_up = path.overdue().is_some();
    assert_eq!(given_up, activity == ConnectionActivity::Silent);
    assert_eq!(connection.is_given_up(), given_up);
    activity
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_bytes_in_the_second_half_is_silent() {
    for (read, answered, expected) in [
        (0, 0, ConnectionActivity::Silent),
        // The handshake only.
        (2, 0, ConnectionActivity::Silent),
        (5, 4, ConnectionActivity::Silent),
        (7, 0, ConnectionActivity::Bytes),
        (10, 0, ConnectionActivity::Bytes),
        (7, 2, ConnectionActivity::Responses),
        (10, 10, ConnectionActivity::Responses),
    ] {
        let found = activity(read, answered).await;
        assert_eq!(found, expected, "{read} {answered}");
    }
    // A response before the request was sent, and only bytes since.
    let connection = Connection::default();
    connection.answered();
    advance(Duration::from_secs(1)).await;
    let sent = Instant::now();
    advance(Duration::from_secs(10)).await;
    connection.0.read.store(connection.0.age(), Relaxed);
    assert_eq!(connection.activity_since(sent), ConnectionActivity::Bytes);
}

#[test]
fn the_end_of_a_connection_counts_and_is_decided_on_once() {
    let (connection, other) = (Connection::default(), Connection::default());
    assert!(connection.count_failure());
    assert!(!connection.clone().count_failure());
    assert!(other.count_failure());
    for (decides, expected) in [(true, true), (false, true)] {
        assert_eq!(connection.may_retry(|| decides), expected);
    }
    assert!(!other.may_retry(|| false));
    assert!(!other.may_retry(|| panic!("it was decided")));
}
