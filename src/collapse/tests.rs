//! Leaders and followers.

use super::*;

const LONG: Duration = Duration::from_secs(5);

fn long() -> Wait {
    Wait::until(Instant::now() + LONG)
}

fn lead(collapse: &Arc<Collapse<u32>>, target: &str) -> Lead<u32> {
    match collapse.join(target.as_bytes(), Mark::default()) {
        Role::Lead(lead) => lead,
        Role::Follow(_) => panic!("another leads"),
    }
}

fn follow(collapse: &Arc<Collapse<u32>>, target: &str) -> Follow<u32> {
    match collapse.join(target.as_bytes(), Mark::default()) {
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
async fn after_a_leader_without_a_value_its_followers_may_lead() {
    let collapse = Collapse::new();
    let leader = lead(&collapse, "/a");
    let follower = follow(&collapse, "/a");
    let panics = tokio::spawn(async move {
        let _leader = leader;
        panic!("a bug");
    });
    assert!(panics.await.is_err());
    assert_eq!(follower.wait(long()).await, Err(FetchError::Abandoned));
    drop(lead(&collapse, "/a"));
    assert!(collapse.is_empty());
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
