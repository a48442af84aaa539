//! Leaders, followers and levels.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::*;

const LONG: Duration = Duration::from_secs(5);

fn long() -> Wait {
    Wait::until(Instant::now() + LONG)
}

fn lead(collapse: &Arc<Collapse<u32>>, target: &str) -> Lead<u32> {
    let lead = collapse.lead(target.as_bytes());
    lead.unwrap_or_else(|| panic!("another leads"))
}

fn follow(collapse: &Arc<Collapse<u32>>, target: &str) -> Follow<u32> {
    match collapse.join::<AnswerLevel>(&ClientLevel, target.as_bytes(), 0) {
        Role::Lead(_) => panic!("no fetch is under way"),
        Role::Follow(follow) => follow,
    }
}

#[tokio::test]
async fn all_followers_get_the_leaders_value() {
    let collapse = Collapse::new();
    let leader = lead(&collapse, "/a");
    let followers: Vec<_> = (0..100).map(|_| follow(&collapse, "/a")).collect();
    let other = lead(&collapse, "/b");
    assert_eq!(collapse.len(), 2);
    leader.finish(7);
    for follower in followers {
        assert_eq!(follower.wait(long()).await, Ok(7));
    }
    drop(other);
    assert!(collapse.is_empty());
    drop(lead(&collapse, "/a"));
}

#[tokio::test]
async fn after_a_fetch_is_retired_another_may_lead() {
    let collapse = Collapse::new();
    let first = lead(&collapse, "/a");
    let joined = follow(&collapse, "/a");
    collapse.retire(b"/a", &joined);
    let second = lead(&collapse, "/a");
    collapse.retire(b"/a", &joined);
    let later = follow(&collapse, "/a");
    first.finish(1);
    // The end of the first is not the end of the second.
    drop(follow(&collapse, "/a"));
    second.finish(2);
    assert_eq!(joined.wait(long()).await, Ok(1));
    assert_eq!(later.wait(long()).await, Ok(2));
    assert!(collapse.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_the_leaders_client_receives_is_waited_for_five_seconds() {
    let collapse = Collapse::new();
    let wait = || Wait::until(Instant::now() + LONG * 10);
    let leader = lead(&collapse, "/a");
    let early = tokio::spawn(follow(&collapse, "/a").wait(wait()));
    tokio::time::advance(LONG * 2).await;
    leader.coming();
    let began = Instant::now();
    assert_eq!(early.await.unwrap(), Err(FetchError::NotSoon));
    assert_eq!(began.elapsed(), COMING);
    let late = follow(&collapse, "/a").wait(wait()).await;
    assert_eq!((late, began.elapsed()), (Err(FetchError::NotSoon), COMING));
    leader.finish(1);
}

#[test]
fn a_follower_with_the_value_may_lead_at_once() {
    for _ in 0..200 {
        let collapse = Collapse::new();
        let leader = lead(&collapse, "/a");
        let follower = follow(&collapse, "/a");
        let joining = collapse.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .unwrap();
            runtime.block_on(async {
                assert_eq!(follower.wait(long()).await, Ok(7));
            });
            drop(lead(&joining, "/a"));
        });
        leader.finish(7);
        thread.join().unwrap();
    }
}

#[tokio::test]
async fn after_a_leader_without_a_value_a_follower_leads() {
    let collapse = Collapse::<u32>::new();
    let led = Arc::new(AtomicUsize::new(0));
    let fetch = || {
        let (collapse, led) = (collapse.clone(), led.clone());
        async move {
            let lead = |lead: Lead<u32>| async move {
                tokio::task::yield_now().await;
                match led.fetch_add(1, SeqCst) {
                    0 => panic!("a bug"),
                    1 => drop(lead),
                    _ => lead.finish(3),
                }
            };
            collapse.fetch(&ClientLevel, b"/a", long(), lead).await
        }
    };
    let got = futures_util::future::join_all((0..10).map(|_| fetch())).await;
    let value = |n| move |got: &&Result<Fetched<u32>, FetchError>| **got == n;
    let abandoned = got.iter().filter(value(Err(FetchError::Abandoned))).count();
    assert_eq!(abandoned, 2, "whose own fetch ended so: {got:?}");
    let led_well = Fetched {
        value: 3,
        collapsed: false,
    };
    assert_eq!(got.iter().filter(value(Ok(led_well))).count(), 1);
    assert!(collapse.is_empty());
}

#[test]
fn followers_on_other_runtimes_get_the_value() {
    let collapse = Collapse::new();
    let leader = lead(&collapse, "/a");
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let follower = follow(&collapse, "/a");
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_time()
                    .build()
                    .unwrap();
                runtime.block_on(async { follower.wait(long()).await })
            })
        })
        .collect();
    leader.finish(9);
    for thread in threads {
        assert_eq!(thread.join().unwrap(), Ok(9));
    }
}

#[tokio::test(start_paused = true)]
async fn each_follower_has_its_own_wait() {
    let collapse = Collapse::new();
    let leader = lead(&collapse, "/a");
    tokio::time::advance(LONG * 3).await;
    let late = tokio::spawn(follow(&collapse, "/a").wait(long()));
    let elsewhere = Wait {
        since_began: Some(LONG),
        ..long()
    };
    // It has another answer to give.
    let at_once = follow(&collapse, "/a").wait(elsewhere).await;
    assert_eq!(at_once, Err(FetchError::TooLate));
    tokio::time::advance(LONG / 2).await;
    leader.finish(4);
    assert_eq!(late.await.unwrap(), Ok(4));

    let _leader = lead(&collapse, "/a");
    let began = Instant::now();
    let never = follow(&collapse, "/a").wait(long()).await;
    assert_eq!(never, Err(FetchError::TooLate));
    assert_eq!(began.elapsed(), LONG);
}

#[tokio::test]
async fn answers_share_exchanges_without_a_deadlock() {
    // Two answers, each of which needs the exchange that the other's key
    // names as well: with one level they would wait for each other.
    let collapse = Collapse::<u32>::new();
    let exchanged = Arc::new(AtomicUsize::new(0));
    let answer = |own: &'static [u8], other: &'static [u8]| {
        let (collapse, exchanged) = (collapse.clone(), exchanged.clone());
        async move {
            let all = collapse.clone();
            let lead = move |lead: Lead<u32>| async move {
                let mut sum = 0;
                for key in [other, own] {
                    let exchanged = exchanged.clone();
                    let send = move |lead: Lead<u32, ExchangeLevel>| async move {
                        tokio::task::yield_now().await;
                        exchanged.fetch_add(1, SeqCst);
                        lead.finish(1);
                    };
                    sum += all.fetch(&lead, key, long(), send).await.unwrap().value;
                }
                lead.finish(sum);
            };
            collapse.fetch(&ClientLevel, own, long(), lead).await
        }
    };
    let (one, other) = tokio::join!(answer(b"/a", b"/b"), answer(b"/b", b"/a"));
    assert_eq!((one.unwrap().value, other.unwrap().value), (2, 2));
    assert_eq!(exchanged.load(SeqCst), 4, "one after another, not beside");
    assert!(collapse.is_empty());
}
