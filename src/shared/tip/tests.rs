//! The script and its model, and leases on a real server.

use super::model::{TipCall, TipRow};
use super::*;
use crate::shared::servers::{Answer, Cluster, Connection, Server, is_installed};

const KEY: &str = "{test:t:0123456789abcdef}";

/// What the server has stored.
fn stored(client: &mut Connection) -> Option<TipRow> {
    let all = client.call(&["HGETALL", KEY]);
    let fields: BTreeMap<_, _> = all
        .list()
        .chunks(2)
        .map(|pair| (pair[0].text(), pair[1].text()))
        .collect();
    let number = |name| fields.get(name).map(|text: &&str| text.parse().unwrap());
    let text = |name| fields.get(name).map(|text: &&str| (*text).to_owned());
    Some(TipRow {
        life: text("life")?,
        clock: number("clock")?,
        holder: text("holder").zip(number("until")),
        found: number("asked").map(|asked| {
            let (height, tag) = (text("height").unwrap(), text("tag").unwrap());
            (asked, height, tag)
        }),
    })
}

fn arguments(process: &str, call: &TipCall) -> Vec<String> {
    let mut all = vec![process.to_owned()];
    match call {
        TipCall::Ask { lease, claims } => {
            let claims = if *claims { "1" } else { "0" };
            all.extend(["ask".to_owned(), lease.to_string(), claims.to_owned()]);
        }
        TipCall::Report {
            life,
            asked,
            height,
            tag,
        } => {
            let asked = asked.to_string();
            all.extend(["report".to_owned(), life.clone(), asked, height.clone()]);
            all.push(tag.clone());
        }
        TipCall::Leave => all.push("leave".to_owned()),
    }
    all
}

/// Random calls by three processes: the replies and what is stored are the same.
#[test]
fn the_script_does_what_its_model_does() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let mut client = server.connection();
    let dice = &mut fastrand::Rng::with_seed(28);
    let mut model = None;
    let life = server.info("run_id");
    let mut turns = BTreeMap::new();
    for round in 0..4000 {
        let process = ["one", "two", "three"][dice.usize(..3)];
        let clock = model.as_ref().map_or(0, |row: &TipRow| row.clock);
        let call = match dice.u32(..10) {
            0 => TipCall::Leave,
            1..4 => TipCall::Report {
                life: match dice.u32(..8) {
                    0 => "another".to_owned(),
                    _ => life.clone(),
                },
                asked: match dice.u32(..8) {
                    0 => clock + 60_000,
                    _ => clock.saturating_sub(dice.u64(..4)),
                },
                height: dice.u32(..1_000_000).to_string(),
                tag: ["", "t", "t\"00ab\"", "tW/\"x\""][dice.usize(..4)].to_owned(),
            },
            _ => TipCall::Ask {
                lease: dice.u64(..6),
                claims: dice.u32(..4) > 0,
            },
        };
        if dice.u32(..200) == 0 {
            // The server's clock was set back, or this is another server.
            let (name, value) = match dice.bool() {
                true => ("clock", "99999999999999"),
                false => ("life", "another"),
            };
            client.call(&["HSET", KEY, name, value]);
            model = stored(&mut client);
        }
        let arguments = arguments(process, &call);
        let mut command = vec!["EVAL", TIP, "1", KEY];
        command.extend(arguments.iter().map(String::as_str));
        let answer = client.call(&command);
        if let Answer::Error(error) = &answer {
            panic!("{error}");
        }
        let reply: Vec<_> = answer.list().iter().map(Answer::text).collect();
        let after = stored(&mut client).unwrap();
        let modelled = model::call(&mut model, &life, after.clock, process, &call);
        assert_eq!(reply, modelled, "{round} {process} {call:?}");
        assert_eq!(Some(after), model, "{round} {process} {call:?}");
        *turns.entry(reply[0].to_owned()).or_insert(0) += 1;
    }
    // Each reply was given often enough.
    for reply in ["own", "other", "free", "left", "kept", "old"] {
        assert!(turns.get(reply) > Some(&50), "{reply}: {turns:?}");
    }
}

/// The leases of one replica at this server.
fn replica(server: &Server, number: u128) -> Arc<TipLeases> {
    replica_at(&server.url(), number)
}

fn replica_at(url: &str, number: u128) -> Arc<TipLeases> {
    let settings = crate::shared::Settings {
        url: EngineUrl::parse(url).unwrap(),
        prefix: "test".to_owned(),
        name: "one".to_owned(),
        timeout: Duration::from_secs(5),
        fill_wait: Duration::ZERO,
    };
    TipLeases::new(&settings, ProcessId(number), &Clock::machine())
}

#[tokio::test]
async fn one_replica_holds_the_lease_until_it_leaves() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let (one, two) = (replica(&server, 1), replica(&server, 2));
    let name = TipName::new("test", "http://u:secret@indexer", "/status", "height");
    let other = TipName::new("test", "http://another", "/status", "height");
    let turn = async |replica: &TipLeases, name, claims| {
        let news = replica.ask(name, claims).await.unwrap();
        news.turn
    };
    assert_eq!(turn(&one, &name, false).await, TipTurn::Free);
    assert_eq!(turn(&one, &name, true).await, TipTurn::Own);
    assert_eq!(turn(&two, &name, true).await, TipTurn::Other);
    assert_eq!(turn(&two, &other, true).await, TipTurn::Own, "a lease each");
    let now = one.clock.now();
    assert!(one.holds(&name, now) && !two.holds(&name, now));
    assert!(!one.holds(&name, now + LEASE), "by its own clock");
    assert_eq!(turn(&one, &name, true).await, TipTurn::Own, "it is renewed");
    one.close().await;
    assert!(!one.holds(&name, now));
    assert_eq!(turn(&one, &name, true).await, TipTurn::Free, "never again");
    assert_eq!(turn(&two, &name, true).await, TipTurn::Own);
    let keys = server.call(&["KEYS", "*"]);
    let keys: Vec<_> = keys.list().iter().map(Answer::text).collect();
    assert!(
        keys.iter().all(|key| key.starts_with("{test:t:")),
        "{keys:?}"
    );
    assert!(keys.iter().all(|key| !key.contains("secret")), "{keys:?}");
}

/// Each tip may be in another part of a cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_has_leases_too() {
    if !is_installed() {
        return;
    }
    let cluster = Cluster::start();
    let [one, two] = [1, 2].map(|number| replica_at(&cluster.url(), number));
    let answered = async |replica: &TipLeases, name: &TipName| {
        for _ in 0..200 {
            if let Ok(news) = replica.ask(name, true).await {
                return news;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("no answer");
    };
    for url in ["http://a", "http://b", "http://c", "http://d"] {
        let name = TipName::new("test", url, "/status", "height");
        let news = answered(&one, &name).await;
        assert_eq!(news.turn, TipTurn::Own);
        one.report(&name, &news.call, 840_000, None).await.unwrap();
        let news = answered(&two, &name).await;
        assert_eq!(news.turn, TipTurn::Other);
        assert_eq!(news.sighting.unwrap().height, 840_000);
    }
}

#[tokio::test]
async fn an_observation_is_as_old_as_the_call_before_its_probe() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let (one, two) = (replica(&server, 1), replica(&server, 2));
    let name = TipName::new("test", "http://indexer", "/status", "height");
    let first = one.ask(&name, true).await.unwrap();
    assert_eq!(first.sighting, None);
    // The engine counts milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let second = two.ask(&name, true).await.unwrap();
    // The probe takes a while, and so does its report.
    tokio::time::sleep(Duration::from_millis(60)).await;
    one.report(&name, &first.call, 840_000, Some(b"\"\xff\""))
        .await
        .unwrap();
    let seen = two.ask(&name, true).await.unwrap().sighting.unwrap();
    assert_eq!(
        (seen.height, seen.tag.as_deref()),
        (840_000, Some(&b"\"\xff\""[..]))
    );
    assert!(seen.age >= Duration::from_millis(60), "{seen:?}");
    // One that follows may have probed as well.
    two.report(&name, &second.call, 840_001, None)
        .await
        .unwrap();
    let seen = one.ask(&name, true).await.unwrap().sighting.unwrap();
    assert_eq!((seen.height, seen.tag), (840_001, None));
    // An older one comes late, and one with a tag that is too long not at all.
    one.report(&name, &first.call, 840_000, None).await.unwrap();
    let last = one.ask(&name, true).await.unwrap();
    let long = vec![b'x'; MOST_TAG_BYTES + 1];
    one.report(&name, &last.call, 840_002, Some(&long))
        .await
        .unwrap();
    assert_eq!(last.sighting.unwrap().height, 840_001);
    let seen = one.ask(&name, true).await.unwrap().sighting.unwrap();
    assert_eq!(seen.height, 840_001);
}

/// What an engine has forgotten, or a later one never knew, is not reported to it.
#[tokio::test]
async fn a_restarted_engine_takes_no_observation_from_before() {
    if !is_installed() {
        return;
    }
    let mut server = Server::start();
    let one = replica(&server, 1);
    let name = TipName::new("test", "http://indexer", "/status", "height");
    let before = one.ask(&name, true).await.unwrap();
    server.call(&["SAVE"]);
    server.kill();
    assert!(one.ask(&name, true).await.is_err());
    assert!(one.holds(&name, one.clock.now()), "until its lease ends");
    server.start_again();
    let mut again = None;
    for _ in 0..200 {
        again = one.ask(&name, false).await.ok();
        if again.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(again.unwrap().turn, TipTurn::Free, "its leases are gone");
    one.report(&name, &before.call, 840_000, None)
        .await
        .unwrap();
    assert_eq!(one.ask(&name, true).await.unwrap().sighting, None);
}

#[test]
fn what_the_script_never_returns_is_not_read() {
    let bytes = |text: &str| EngineValue::Bytes(text.into());
    let list = |texts: &[&str]| EngineValue::List(texts.iter().map(|text| bytes(text)).collect());
    assert!(TipNews::read(&list(&["own", "life", "5"])).is_some());
    assert!(TipNews::read(&list(&["other", "life", "5", "4", "1", "840000", "tx"])).is_some());
    for wrong in [
        list(&[]),
        list(&["mine", "life", "5"]),
        list(&["own", "life"]),
        list(&["own", "life", "-5"]),
        list(&["own", "life", "5", "4"]),
        list(&["own", "life", "5", "4", "1", "4294967296", ""]),
        list(&["own", "life", "5", "4", "1", "840000", "x"]),
        list(&["own", "life", "5", "4", "1", "840000", "", ""]),
        list(&["own", "life", "5", "4", "1", "840000", "t\r\nx: y"]),
        list(&["own", "life", "5", "4", "1", "840000", &"t".repeat(258)]),
        EngineValue::Nothing,
        bytes("own"),
    ] {
        assert_eq!(TipNews::read(&wrong), None, "{wrong:?}");
    }
}

#[tokio::test]
async fn tips_that_were_removed_are_forgotten() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let leases = replica(&server, 1);
    for tip in ["runes", "ordinals"] {
        leases.note_turn(tip, Some(TipTurn::Own));
    }
    leases.retain(["runes", "new"].into_iter());
    let left: Vec<_> = leases.shares().into_keys().collect();
    assert_eq!(left.join(", "), "runes");
}
