//! Random failures, one after another and at the same time. `ORDGATE_ALLOWANCE_SEEDS`
//! plays so many seeds of an hour each.

use std::time::Duration;

use super::world::{Q, REPLICAS, World};
use crate::shared::servers::{Server, is_installed};

/// What goes wrong, or ends.
async fn fault(world: &mut World, server: &mut Server, dice: &mut fastrand::Rng) {
    let at = dice.usize(..REPLICAS);
    let long = dice.u64(1..2 * Q);
    match dice.u8(..11) {
        0 => drop(server.call(&["FLUSHALL"])),
        1 => drop(server.call(&["SAVE"])),
        2 | 3 => {
            server.kill();
            world.run(dice.u64(..20)).await;
            server.start_again();
        }
        4 => {
            world.set_timeout(Duration::from_millis(5));
            server.stop();
            world.run(long / 4).await;
            server.proceed();
            world.set_timeout(Duration::from_secs(5));
        }
        5 => world.processes[at].is_cut_off ^= true,
        6 => {
            world.processes[at].is_paused = true;
            world.run(long).await;
            world.processes[at].is_paused = false;
        }
        7 => world.replace(at, &format!("replica-{at}"), server),
        _ => world.processes[at].demand = [0, 1, 4][dice.usize(..3)],
    }
    world.run(dice.u64(1..60)).await;
}

#[tokio::test]
async fn no_window_exceeds_the_budget_in_a_storm() {
    if !is_installed() {
        return;
    }
    let given = std::env::var("ORDGATE_ALLOWANCE_SEEDS").ok();
    let (seeds, seconds) = match given {
        Some(seeds) => (seeds.parse().unwrap(), 3600),
        None => (2, 900),
    };
    for seed in 0..seeds {
        let mut server = Server::start();
        let mut dice = fastrand::Rng::with_seed(seed);
        let mut world = World::new(&server, seed);
        world.settle().await;
        let end = world.now + seconds * 1000;
        while world.now < end {
            fault(&mut world, &mut server, &mut dice).await;
        }
        eprintln!("seed {seed}: {} % used", world.used(seconds));
        world.check();
    }
}
