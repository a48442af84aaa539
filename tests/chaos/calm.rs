//! After the run, without clients and faults: everything must have been released,
//! and the gateway must work as at its start.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::check::judge;
use super::front::{Front, Sky};
use super::operator::{Operator, key};
use super::questions::{About, Question};
use super::world::{HANG, World};
use crate::support::Gateway;
use crate::support::wire::Wire;

/// How long what was under way may take to end, and the gateway to find that
/// all is well again.
const PATIENCE: Duration = Duration::from_secs(30);
/// A budget that is in nobody's way.
const PLENTY: usize = 1_000_000;

/// Waits until all is given back, and sees that all of it can be taken again.
pub(crate) async fn settle(world: &Arc<World>, operator: &mut Operator, fronts: &mut [Front]) {
    quiet(world, operator.gateway()).await;

    // Keys that no fault has met. The bound
    // on requests under way stays, and with it the very places that were taken.
    // Only what the crowd asks for is asked for.
    let most = operator.max_in_flight();
    let keys: Vec<_> = (100..103).map(key).collect();
    let text = format!(
        "limit.enabled = false\nserver.max_connections = 16384\n\
         upstream.requests_per_minute = {PLENTY}\nupstream.requests_per_second = {PLENTY}\n"
    );
    operator.write(&text, &keys);
    operator
        .take_up(Some((PLENTY, PLENTY)), Some(keys), &text)
        .await;

    for front in &mut *fronts {
        front.turn(Sky::Hold).await;
        front.most();
    }
    // The crowd is one client to the gateway, which leaves a quarter of them.
    let most = most - most / 4;
    let began = Instant::now();
    let mut reached = 0;
    for round in 0.. {
        crowd(world, operator, most + 8, round).await;
        // One is asked at a time; in the middle of a round it may be another.
        let now = fronts.iter().map(Front::most).max();
        reached = reached.max(now.unwrap_or(0));
        if reached >= most || began.elapsed() > PATIENCE {
            break;
        }
    }
    if reached != most {
        world.violation(format!(
            "{reached} requests at once have come up, of {most} that may"
        ));
    }
    world.count(
        "afterwards",
        format!("{reached} places taken at once of {most} that one client may"),
    );
    quiet(world, operator.gateway()).await;
}

/// Asks for so many things at once that nobody has asked for.
async fn crowd(world: &Arc<World>, operator: &Operator, count: usize, round: usize) {
    let mut clients = JoinSet::new();
    let to = operator.gateway().public;
    for number in 0..count {
        let world = world.clone();
        clients.spawn(async move {
            let question = Question {
                method: "GET",
                target: format!("/ordinals/v1/brc-20/tokens/r{round}-{number}"),
                fields: String::new(),
                about: About::NoToken,
            };
            let asked = async {
                let mut wire = Wire::connect(to, None).await.unwrap();
                wire.send(question.bytes()).await.unwrap();
                wire.answer("GET").await.unwrap()
            };
            let Ok(answer) = timeout(HANG, asked).await else {
                return world.violation("it hangs, and all is calm");
            };
            world.count("afterwards", format!("answers: {}", answer.status));
            if let Err(why) = judge(&world, &question, &answer) {
                world.violation(format!("all is calm, and yet: {why}: {answer:?}"));
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
}

/// Waits until nothing is under way.
async fn quiet(world: &World, gateway: &Gateway) {
    let began = Instant::now();
    loop {
        let status = gateway.status();
        let left = left(&status);
        if left.is_empty() {
            return;
        }
        if began.elapsed() > PATIENCE {
            return world.violation(format!("all is over, and there is left: {left:?}"));
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// What of the things that end is not at its end.
fn left(status: &Value) -> Vec<String> {
    let paths = ["/upstream/in_flight", "/collapse/keys", "/connections/open"];
    let value = |path: &&str| status.pointer(path) != Some(&Value::from(0));
    let left = paths.iter().filter(|path| value(path));
    left.map(|path| format!("{path} {:?}", status.pointer(path)))
        .collect()
}
