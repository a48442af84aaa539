//! What listeners are sent, without sockets.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Buf;

use super::*;
use crate::clock::Clock;

const BOTH: &[&str] = &["ordinals", "runes"];

/// A client that reads what there is.
struct Client(Body);

impl Client {
    fn of(events: &Events, tips: &[&str], last_id: &str) -> Self {
        let activity = Arc::new(Activity::new(&Clock::manual()));
        Self(events.listen(&activity, tips, last_id))
    }

    /// What has come: each event with its datum, such as `tip runes 7`; and the last id.
    fn read(&mut self) -> (Vec<String>, String) {
        let (mut came, mut id) = (Vec::new(), String::new());
        for block in self.text().split_terminator("\n\n") {
            let mut event = String::new();
            for line in block.lines() {
                match line.split_once(": ").unwrap() {
                    ("event", name) => event = name.to_owned(),
                    ("data", data) => {
                        let data: serde_json::Value = serde_json::from_str(data).unwrap();
                        let number = data.get("height").or(data.get("from")).unwrap();
                        let tip = data["tip"].as_str().unwrap();
                        came.push(format!("{event} {tip} {number}"));
                    }
                    ("id", own) => id = own.to_owned(),
                    other => panic!("{other:?}"),
                }
            }
        }
        (came, id)
    }

    fn text(&mut self) -> String {
        let mut text = String::new();
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(frame)) =
            http_body::Body::poll_frame(Pin::new(&mut self.0), &mut cx)
        {
            let piece = frame.unwrap().into_data().ok();
            text += std::str::from_utf8(piece.unwrap().chunk()).unwrap();
        }
        text
    }
}

#[tokio::test]
async fn a_listener_gets_the_tips_and_then_what_happens_to_them() {
    let events = Events::default();
    let mut early = Client::of(&events, BOTH, "");
    assert_eq!(early.read(), (vec![], String::new()), "no tip is known");
    events.status("ordinals", 6, b"a", false);
    events.status("runes", 7, b"a", true);
    let (came, id) = early.read();
    assert_eq!(came, ["tip ordinals 6", "tip runes 7", "settled runes 7"]);
    let mut late = Client::of(&events, BOTH, "");
    assert_eq!(
        late.read(),
        (vec!["tip ordinals 6".into(), "tip runes 7".into()], id)
    );
    let mut of_runes = Client::of(&events, &["runes"], "");
    assert_eq!(of_runes.read().0, ["tip runes 7"]);

    events.status("ordinals", 6, b"a", false);
    assert_eq!(late.text(), "", "nothing has changed");
    events.status("ordinals", 6, b"a", true);
    events.status("runes", 7, b"b", false);
    events.reorg("runes", 5);
    events.status("runes", 7, b"b", true);
    events.reorg("runes", 4);
    events.status("runes", 7, b"b", true);
    let of_runes_came = [
        "tip runes 7",
        "reorg runes 5",
        "settled runes 7",
        "reorg runes 4",
        "settled runes 7",
    ];
    assert_eq!(of_runes.read().0, of_runes_came);
    for client in [&mut early, &mut late] {
        let (came, _) = client.read();
        assert_eq!(came[0], "settled ordinals 6");
        assert_eq!(came[1..], of_runes_came);
    }
}

/// The second process has not seen all that the first one has.
#[tokio::test]
async fn an_id_means_the_same_in_another_process() {
    let first = Events::default();
    let mut client = Client::of(&first, BOTH, "");
    let mut ids = Vec::new();
    let steps: &[&dyn Fn(&Events)] = &[
        &|events| events.status("runes", 7, b"a", false),
        &|events| events.status("runes", 7, b"a", true),
        &|events| events.status("ordinals", 6, b"a", false),
        &|events| events.reorg("runes", 5),
        &|events| events.status("runes", 7, b"a", true),
        &|events| events.status("runes", 8, b"b", true),
    ];
    for step in steps {
        step(&first);
        ids.push(client.read().1);
    }
    let after_first = |id: &str| Client::of(&first, BOTH, id).read().0;
    let news = ["tip runes 8", "settled runes 8"];
    let rest = ["reorg runes 5", "settled runes 7", news[0], news[1]];
    assert_eq!(after_first(&ids[2]), rest);
    assert_eq!(after_first(&ids[5]), [""; 0]);
    assert_eq!(
        after_first("runes/7/00000000/ ordinals"),
        ["tip ordinals 6", news[0]]
    );

    let second = Events::default();
    let mut unknown = Client::of(&second, BOTH, &ids[2]);
    steps[2](&second);
    steps[0](&second);
    assert_eq!(unknown.read().0, [""; 0], "it has had these tips");
    let mut client = Client::of(&second, BOTH, &ids[2]);
    steps[1](&second);
    for client in [&mut unknown, &mut client] {
        assert_eq!(client.read().0, [""; 0], "it knows that it is settled");
    }
    steps[3](&second);
    steps[4](&second);
    for client in [&mut unknown, &mut client] {
        assert_eq!(client.read().0, ["reorg runes 5", "settled runes 7"]);
    }
    steps[5](&second);
    assert_eq!(unknown.read().1, ids[5]);
    let stale = Client::of(&Events::default(), BOTH, &ids[0]).read();
    assert_eq!(stale, (vec![], String::new()));
}

#[tokio::test]
async fn a_listener_that_is_too_far_behind_is_dropped() {
    let events = Events::default();
    let mut behind = Client::of(&events, BOTH, "");
    behind.read();
    for height in 0..MOST_EVENTS as u32 {
        events.status("runes", height, b"", false);
    }
    assert_eq!(behind.read().0.len(), MOST_EVENTS);
    for height in 0..=MOST_EVENTS as u32 {
        events.status("runes", height, b"", false);
    }
    assert!(behind.text().starts_with("retry: "));
    assert!(http_body::Body::is_end_stream(&behind.0), "it has ended");
    let mut anew = Client::of(&events, BOTH, "");
    assert_eq!(anew.read().0, [format!("tip runes {MOST_EVENTS}")]);
}

#[tokio::test(start_paused = true)]
async fn a_comment_comes_where_nothing_happens_and_a_drain_ends_all() {
    let events = Events::default();
    events.status("a \"b\"", 1, b"", false);
    let mut client = Client::of(&events, &["a \"b\""], "");
    let first = "event: tip\ndata: {\"tip\":\"a \\\"b\\\"\",\"height\":1}\n\nid: a%20%22b%22/1/";
    assert!(client.text().starts_with(first));
    for _ in 0..3 {
        assert_eq!(client.text(), "");
        tokio::time::advance(QUIET).await;
        assert_eq!(client.text(), ":\n\n");
    }
    events.drain();
    let mut late = Client::of(&events, BOTH, "");
    for client in [&mut client, &mut late] {
        let text = client.text();
        let (_, retry) = text.split_once("retry: ").unwrap();
        let millis = retry.strip_suffix("\n\n").unwrap().parse().unwrap();
        assert!(RETRY.contains(&millis));
        assert!(http_body::Body::is_end_stream(&client.0));
    }
}
