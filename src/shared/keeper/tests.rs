//! Budgets that replicas share, with a real engine: one test for each row of the table of
//! failures (DESIGN.md, 10). Time is the test's, so a minute takes a fraction of a second;
//! the engine's servers are processes that are stopped, killed and promoted.
//!
//! Without `redis-server`, each test says that it is skipped; with `ORDGATE_CI=1` it
//! fails then.

mod storm;
mod world;

use std::time::Duration;

use world::{Q, REPLICAS, START, World};

use crate::shared::servers::{Server, is_installed, wait_for};

#[tokio::test]
async fn even_load_uses_the_budget() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let mut world = World::new(&server, 1);
    world.run(START - 2).await;
    assert_eq!(world.used(60), 0, "nothing before the start");
    world.run(Q + 62).await;
    world.run(300).await;
    world.check();
    let (used, limits) = (world.used(300), world.limits());
    eprintln!("even load: {used} % used, limits of {limits:?} %");
    assert!(used >= 95 && limits[0] >= 95, "{used} {limits:?}");
}

#[tokio::test]
async fn the_floor_works_with_the_engine_gone() {
    if !is_installed() {
        return;
    }
    let mut server = Server::start();
    let mut world = World::new(&server, 2);
    world.settle().await;
    assert!(world.limits()[0] >= 95, "{:?}", world.limits());
    server.kill();
    world.run(4).await;
    assert_eq!(world.limits(), [50, 50], "a lease lasts 3 s");
    world.run(60).await;
    world.run(300).await;
    let used = world.used(300);
    eprintln!("engine gone: {used} % used");
    assert!((48..=50).contains(&used), "{used}");
    server.start_again();
    world.run(Q - 20).await;
    assert_eq!(world.limits(), [50, 50], "nothing is raised before Q");
    world.run(40).await;
    assert!(world.limits()[0] >= 95, "{:?}", world.limits());
    world.run(120).await;
    world.check();
}

/// It answers late: what was asked for is counted long after nobody waits for it.
#[tokio::test]
async fn a_slow_engine_is_no_engine() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let mut world = World::new(&server, 3);
    world.settle().await;
    for round in 0..3 {
        world.set_timeout(Duration::from_millis(20));
        server.stop();
        world.run(30 + 60 * round).await;
        assert_eq!(world.limits(), [50, 50]);
        server.proceed();
        world.set_timeout(Duration::from_secs(5));
        world.run(20).await;
    }
    world.run(Q + 60).await;
    assert!(world.limits()[0] >= 95, "{:?}", world.limits());
    world.check();
}

#[tokio::test]
async fn a_paused_engine_answers_old_reports_first() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let mut world = World::new(&server, 4);
    world.settle().await;
    world.set_timeout(Duration::from_millis(5));
    server.call(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    world.run(30).await;
    assert_eq!(world.limits(), [50, 50]);
    server.call(&["CLIENT", "UNPAUSE"]);
    world.set_timeout(Duration::from_secs(5));
    world.run(Q + 60).await;
    assert!(world.limits()[0] >= 95, "{:?}", world.limits());
    world.check();
}

#[tokio::test]
async fn a_flush_is_a_new_generation() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let mut world = World::new(&server, 5);
    world.settle().await;
    for _ in 0..5 {
        server.call(&["FLUSHALL"]);
        world.run(17).await;
        // All claim what they hold.
        assert!(world.limits()[0] >= 85, "{:?}", world.limits());
    }
    assert!(world.processes[0].keeper.snapshot()[0].generations >= 5);
    world.run(Q + 60).await;
    assert!(world.limits()[0] >= 95, "{:?}", world.limits());
    world.check();
}

#[tokio::test]
async fn an_older_copy_of_the_rows_is_not_used() {
    if !is_installed() {
        return;
    }
    let mut server = Server::start();
    let mut world = World::new(&server, 6);
    world.processes[2].demand = 0;
    world.settle().await;
    // The dump says that one replica has nothing, and another one has.
    server.call(&["SAVE"]);
    world.processes[2].demand = 4;
    world.processes[0].demand = 0;
    world.run(120).await;
    server.kill();
    server.start_again();
    world.processes[0].demand = 4;
    world.run(Q + 120).await;
    assert!(world.limits()[0] >= 95, "{:?}", world.limits());
    world.check();
}

/// The replicas are on both sides of a split, and each side has a primary.
#[tokio::test]
async fn a_split_grants_on_no_side_without_a_majority() {
    if !is_installed() {
        return;
    }
    let (old, new) = (Server::start(), Server::start());
    new.follow(&old);
    let mut world = World::new(&old, 7);
    world.settle().await;
    assert!(world.limits()[0] >= 95, "{:?}", world.limits());
    new.promote();
    wait_for("the copy has left", || old.info("connected_slaves") == "0");
    world.report_to(2, &new);
    world.run(5).await;
    assert_eq!(world.limits(), [50, 50], "neither side has a majority");
    let snapshot = world.processes[0].keeper.snapshot();
    assert_eq!(
        (snapshot[0].majority, snapshot[0].copies),
        (Some(false), [0, 1])
    );
    world.run(Q + 60).await;
    assert_eq!(world.limits(), [50, 50]);
    // It heals: the old primary follows the new one, with all replicas.
    old.follow(&new);
    world.report_to(0, &new);
    world.report_to(1, &new);
    world.run(Q + 60).await;
    assert!(world.limits()[0] >= 95, "{:?}", world.limits());
    world.check();
}

#[tokio::test]
async fn what_a_replica_holds_that_is_cut_off_is_granted_to_others_after_q() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let mut world = World::new(&server, 8);
    world.processes[1].demand = 0;
    world.processes[2].demand = 0;
    world.settle().await;
    let alone = world.limits();
    world.processes[0].is_cut_off = true;
    world.processes[1].demand = 4;
    world.run(60).await;
    world.run(Q + 60).await;
    // The floor of the one that is cut off stays reserved.
    let limits = world.limits();
    eprintln!("one replica: {alone:?} %; it is cut off: {limits:?} %");
    assert!(limits[0] >= 90, "{limits:?}");
    world.processes[0].is_cut_off = false;
    world.run(Q + 60).await;
    world.check();
}

#[tokio::test]
async fn a_paused_process_goes_on_with_its_floor() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let mut world = World::new(&server, 9);
    world.settle().await;
    for seconds in [2, 4, 40, Q + 60] {
        world.processes[0].is_paused = true;
        world.run(seconds).await;
        world.processes[0].is_paused = false;
        world.run(30).await;
    }
    world.run(Q + 60).await;
    assert!(world.limits()[0] >= 95, "{:?}", world.limits());
    world.check();
}

#[tokio::test]
async fn a_killed_process_is_followed_by_one_that_waits() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let mut world = World::new(&server, 10);
    world.settle().await;
    for at in 0..REPLICAS {
        world.replace(at, &format!("replica-{at}"), &server);
        world.run(20).await;
    }
    world.run(START + Q + 60).await;
    assert!(world.limits()[0] >= 95, "{:?}", world.limits());
    world.check();
}

/// Two replicas have one name: they are two processes with an allowance each.
#[tokio::test]
async fn a_name_that_is_used_twice_changes_nothing() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let mut world = World::new(&server, 11);
    world.replace(1, "replica-0", &server);
    world.settle().await;
    world.run(120).await;
    let names = &world.processes[2].keeper.snapshot()[0].names;
    let twice = names.iter().filter(|name| &***name == "replica-0");
    assert_eq!(twice.count(), 2, "{names:?}");
    assert!(world.limits()[0] >= 95, "{:?}", world.limits());
    world.check();
}
