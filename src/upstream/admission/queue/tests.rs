//! Waiting in the queue: order, wake-ups and deadlines, with a paused clock.

use std::sync::atomic::AtomicU32;

use http::StatusCode;

use super::*;
use crate::identify::Client;

fn request(priority: Priority, client: u32) -> RequestPriority {
    RequestPriority::of(Client::V4(client), priority)
}

const LONG: Duration = Duration::from_secs(5);

/// Admits as many requests as there are permits.
struct Permits(AtomicU32);

impl Permits {
    fn attempt(&self) -> Result<(), NotAdmitted> {
        let less = |n: u32| n.checked_sub(1);
        let taken = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        taken
            .map(drop)
            .map_err(|_none| NotAdmitted::from(Denied::SpentUntilRequestEnds))
    }
}

#[tokio::test(start_paused = true)]
async fn requests_are_admitted_in_the_fair_order() {
    let queue = AdmissionQueue::new(100, Clock::manual());
    let permits = Arc::new(Permits(AtomicU32::new(0)));
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for (priority, client) in [
        (Priority::Miss, 1),
        (Priority::Miss, 1),
        (Priority::Miss, 1),
        (Priority::Miss, 2),
        (Priority::Revalidation, 3),
        (Priority::Probe, 4),
    ] {
        let (queue, permits, order) = (queue.clone(), permits.clone(), order.clone());
        let before = queue.len();
        tasks.push(tokio::spawn({
            let queue = queue.clone();
            async move {
                let request = request(priority, client);
                queue
                    .admit(request, LONG, |_slot| permits.attempt())
                    .await
                    .unwrap();
                order.lock().unwrap().push(client);
            }
        }));
        while queue.len() == before {
            tokio::task::yield_now().await;
        }
    }
    for admitted in 1..=6 {
        permits.0.fetch_add(1, Ordering::SeqCst);
        queue.wake();
        while order.lock().unwrap().len() < admitted {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(*order.lock().unwrap(), [4, 1, 2, 3, 1, 1]);
    assert!(queue.is_empty());
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn no_request_waits_beyond_its_deadline() {
    let queue = AdmissionQueue::new(100, Clock::manual());
    let never = |_slot| Err::<(), _>(NotAdmitted::from(Denied::SpentUntilRequestEnds));
    let began = Instant::now();
    let first = queue.admit(request(Priority::Miss, 1), LONG, never);
    let second = queue.admit(request(Priority::Miss, 2), LONG / 2, never);
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first, Err(Denied::SpentUntilRequestEnds));
    assert!(matches!(second, Err(Denied::SpentFor(_))));
    assert_eq!(began.elapsed(), LONG);
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_no_wait_helps_is_denied_at_once() {
    let queue = AdmissionQueue::new(100, Clock::manual());
    let began = Instant::now();
    for (denied, may_wait) in [
        (Denied::SpentUntilRequestEnds, false),
        (Denied::BreakerOpen(LONG / 2), true),
        (Denied::KeyRefused(StatusCode::FORBIDDEN), true),
        (Denied::SpentFor(LONG * 2), true),
    ] {
        let deny = |_slot| Err::<(), _>(NotAdmitted { denied, may_wait });
        let admitted = queue.admit(request(Priority::Miss, 1), LONG, deny).await;
        assert_eq!(admitted, Err(denied));
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_known_pause_is_waited_for() {
    let queue = AdmissionQueue::new(100, Clock::manual());
    let began = Instant::now();
    let attempt = |_slot| match began.elapsed() < Duration::from_secs(2) {
        true => Err(NotAdmitted::from(Denied::SpentFor(
            Duration::from_secs(2) - began.elapsed(),
        ))),
        false => Ok(()),
    };
    let admitted = queue.admit(request(Priority::Miss, 1), LONG, attempt).await;
    assert_eq!(admitted, Ok(()));
    assert!(began.elapsed() < Duration::from_millis(2010));
}

#[tokio::test(start_paused = true)]
async fn a_displaced_request_fails_at_once() {
    let queue = AdmissionQueue::new(2, Clock::manual());
    let never = |_slot| Err::<(), _>(NotAdmitted::from(Denied::SpentUntilRequestEnds));
    let began = Instant::now();
    let greedy = request(Priority::Miss, 1);
    let (one, other) = (queue.admit(greedy, LONG, never), async {
        let displaced = queue.admit(greedy, LONG, never).await;
        (displaced, began.elapsed())
    });
    let late = async {
        tokio::task::yield_now().await;
        queue.admit(request(Priority::Miss, 2), LONG, never).await
    };
    let (_, (displaced, after), _) = tokio::join!(one, other, late);
    assert!(displaced.is_err());
    assert_eq!(after, Duration::ZERO);
    // A dropped future leaves the queue.
    let dropped = queue.admit(greedy, LONG, never);
    assert!(tokio::time::timeout(LONG / 5, dropped).await.is_err());
    assert!(queue.is_empty());
}
