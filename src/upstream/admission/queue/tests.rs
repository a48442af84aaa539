//! Waiting in the queue: turns, wakes and patience, by a paused clock.

use std::sync::atomic::AtomicU32;

use super::*;
use crate::identify::Client;

fn wish(priority: Priority, caller: u32) -> RequestPriority {
    RequestPriority {
        priority,
        client: Some(Client::V4(caller)),
    }
}

fn hold(until: AdmissionRetry) -> NotAdmitted {
    NotAdmitted {
        failure: Failure::Spent {
            retry_after: Duration::from_secs(9),
        },
        retry: until,
    }
}

const LONG: Duration = Duration::from_secs(5);

/// Lets so many pass as there are permits.
struct Permits(AtomicU32);

impl Permits {
    fn attempt(&self) -> Result<(), NotAdmitted> {
        let less = |n: u32| n.checked_sub(1);
        let taken = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        taken
            .map(drop)
            .map_err(|_none| hold(AdmissionRetry::WhenRequestEnds))
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_passes_in_turns_as_there_is_room() {
    let line = AdmissionQueue::new(100, Clock::manual());
    let permits = Arc::new(Permits(AtomicU32::new(0)));
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for (priority, caller) in [
        (Priority::Miss, 1),
        (Priority::Miss, 1),
        (Priority::Miss, 1),
        (Priority::Miss, 2),
        (Priority::Revalidation, 3),
        (Priority::Probe, 4),
    ] {
        let (line, permits, order) = (line.clone(), permits.clone(), order.clone());
        let before = line.len();
        tasks.push(tokio::spawn({
            let line = line.clone();
            async move {
                let wish = wish(priority, caller);
                line.admit(wish, LONG, |_slot| permits.attempt())
                    .await
                    .unwrap();
                order.lock().unwrap().push(caller);
            }
        }));
        while line.len() == before {
            tokio::task::yield_now().await;
        }
    }
    for passed in 1..=6 {
        permits.0.fetch_add(1, Ordering::SeqCst);
        line.wake();
        while order.lock().unwrap().len() < passed {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(*order.lock().unwrap(), [4, 1, 2, 3, 1, 1]);
    assert!(line.is_empty());
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_its_patience() {
    let line = AdmissionQueue::new(100, Clock::manual());
    let never = |_slot| Err::<(), _>(hold(AdmissionRetry::WhenRequestEnds));
    let began = Instant::now();
    let first = line.admit(wish(Priority::Miss, 1), LONG, never);
    let second = line.admit(wish(Priority::Miss, 2), LONG / 2, never);
    let (first, second) = tokio::join!(first, second);
    let spent = |left| Failure::Spent {
        retry_after: Duration::from_secs(left),
    };
    assert_eq!(first, Err(spent(9)));
    assert!(matches!(second, Err(Failure::Spent { .. })));
    assert_eq!(began.elapsed(), LONG);
    assert!(line.is_empty());
}

#[tokio::test(start_paused = true)]
async fn waiting_that_is_of_no_use_is_not_done() {
    let line = AdmissionQueue::new(100, Clock::manual());
    let began = Instant::now();
    for until in [AdmissionRetry::Never, AdmissionRetry::After(LONG * 2)] {
        let held = |_slot| Err::<(), _>(hold(until));
        let passed = line.admit(wish(Priority::Miss, 1), LONG, held).await;
        assert!(passed.is_err(), "{until:?}");
    }
    let held = |_slot| Err::<(), _>(hold(AdmissionRetry::WhenRequestEnds));
    let ahead = line.admit(wish(Priority::LookAhead, 1), LONG, held).await;
    assert!(ahead.is_err(), "it does not wait");
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_is_known_is_waited_for() {
    let line = AdmissionQueue::new(100, Clock::manual());
    let began = Instant::now();
    let attempt = |_slot| match began.elapsed() < Duration::from_secs(2) {
        true => Err(hold(AdmissionRetry::After(
            Duration::from_secs(2) - began.elapsed(),
        ))),
        false => Ok(()),
    };
    let passed = line.admit(wish(Priority::Miss, 1), LONG, attempt).await;
    assert_eq!(passed, Ok(()));
    assert!(began.elapsed() < Duration::from_millis(2010));
}

#[tokio::test(start_paused = true)]
async fn who_has_to_go_is_told_at_once() {
    let line = AdmissionQueue::new(2, Clock::manual());
    let never = |_slot| Err::<(), _>(hold(AdmissionRetry::WhenRequestEnds));
    let began = Instant::now();
    let greedy = wish(Priority::Miss, 1);
    let (one, other) = (line.admit(greedy, LONG, never), async {
        let out = line.admit(greedy, LONG, never).await;
        (out, began.elapsed())
    });
    let late = async {
        tokio::task::yield_now().await;
        line.admit(wish(Priority::Miss, 2), LONG, never).await
    };
    let (_, (out, after), _) = tokio::join!(one, other, late);
    assert!(out.is_err());
    assert_eq!(after, Duration::ZERO);
    // One that is dropped leaves as well.
    let dropped = line.admit(greedy, LONG, never);
    assert!(tokio::time::timeout(LONG / 5, dropped).await.is_err());
    assert!(line.is_empty());
}
