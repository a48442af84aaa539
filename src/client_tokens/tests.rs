//! Tokens of requests, and what becomes of clients in reloads.

use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use crate::identify::Client;

fn limits(enabled: bool) -> limit::Settings {
    limit::Settings {
        enabled,
        requests_per_minute: NonZeroU32::new(60).unwrap(),
        burst: NonZeroU32::new(2).unwrap(),
        ..limit::Settings::default()
    }
}

/// The clients of a token file that comes after another.
fn after(before: &ClientTokens, clock: &Clock, text: &str) -> ClientTokens {
    let file = TokenFile::parse("t", text).unwrap();
    before.next(Some(&file), false, &limits(true), clock)
}

/// A text in which each token has the length of a real one.
fn long(text: &str) -> String {
    let tokens = [
        "og_1",
        "og_2",
        "og_3",
        "og_4",
        "og_old",
        "og_new",
        "og_unknown",
    ];
    let lengthen = |text: String, token| text.replace(token, &format!("{token:0<51}"));
    tokens.into_iter().fold(text.to_owned(), lengthen)
}

fn line(name: &str, token: &str, more: &str) -> String {
    let line = file::line(&TokenName(name.into()), &long(token));
    format!("{}{more} }}\n", line.strip_suffix(" }").unwrap())
}

fn named<'t>(tokens: &'t ClientTokens, name: &str) -> (u64, &'t TokenClient) {
    let mut all = tokens.clients.iter();
    let client = all.find(|client| &*client.name == name).unwrap();
    (client.number, client)
}

/// What is found in a request's fields, and what is left of them.
fn take(
    tokens: &ClientTokens,
    lines: &[(&'static str, String)],
) -> (Option<Result<String, Reason>>, Vec<String>) {
    let mut fields = HeaderMap::new();
    for (name, value) in lines {
        fields.append(*name, HeaderValue::from_str(value).unwrap());
    }
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_801_353_600);
    let found = tokens.take(&mut fields, || at);
    let found = found.map(|found| found.map(|(_, client)| client.name.to_string()));
    let shown = fields
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
    (found, shown.collect())
}

#[test]
fn tokens_are_taken_and_other_credentials_stay() {
    let text = line("one", "og_1", "") + &line("two", "og_2", "");
    let text = text + &line("old", "og_old", ", expires = 2027-01-31");
    let text = text + &line("new", "og_new", ", expires = 2027-01-31T00:00:01Z");
    let tokens = after(&ClientTokens::default(), &Clock::manual(), &text);
    for row in long(REQUESTS).trim().lines() {
        let [sent, found, left] = row.trim_end_matches('-').split(" -> ").collect::<Vec<_>>()[..]
        else {
            panic!("{row}")
        };
        let sent = sent
            .split(" / ")
            .filter(|line| *line != "none")
            .map(|line| {
                let (name, value) = line.split_once(": ").unwrap();
                let names = ["authorization", "x-api-key"];
                (names[usize::from(name == "k")], value.to_owned())
            });
        let (got, stays) = take(&tokens, &sent.collect::<Vec<_>>());
        let got = match got {
            None => "none".to_owned(),
            Some(Ok(name)) => name,
            Some(Err(fault)) => format!("{fault:?}"),
        };
        let stays = stays.join(" / ").replace("authorization", "a");
        assert_eq!(
            (&*got, &*stays.replace("x-api-key", "k")),
            (found, left),
            "{row}"
        );
    }
}

// What a request has in `authorization` and `x-api-key`, whose it is, and what is left. The first
// of several tokens counts, and none stays; what looks like no token is none.
const REQUESTS: &str = "
none -> none -> -
a: Bearer og_1 -> one -> -
a: bEARER   og_2  -> two -> -
k: og_2 -> two -> -
k: og_1 / a: Bearer og_2 / k: og_2 -> one -> -
a: Bearer og_unknown / a: Bearer og_1 -> UnknownToken -> -
a: Bearer og_ -> UnknownToken -> -
k: og_1, og_1 -> UnknownToken -> -
k: og_old -> ExpiredToken -> -
k: og_new -> new -> -
a: Bearer abc / k: og_1 / a: Basic YTpi -> one -> a: Bearer abc / a: Basic YTpi
a: Basic YTpi / a: Bearer og_1 -> one -> a: Basic YTpi
a: Bearer og_1 / k: abc -> one -> k: abc
a: Bearer -> none -> a: Bearer
a: og_1 -> none -> a: og_1
a: Token og_1 -> none -> a: Token og_1
k: Bearer og_1 -> none -> k: Bearer og_1
";

#[test]
fn a_reload_keeps_numbers_usage_and_counts() {
    let clock = Clock::manual();
    let admit = |tokens: &ClientTokens| {
        let (number, client) = named(tokens, "a");
        let rate = client.rate.as_ref().unwrap();
        rate.admit(Client::Token(number), clock.now()).is_ok()
    };
    let two = ", burst = 2";
    let first = after(&ClientTokens::default(), &clock, &line("a", "og_1", two));
    named(&first, "a").1.requests[1].fetch_add(1, Relaxed);
    assert!(admit(&first) && admit(&first) && !admit(&first));
    let text = line("c", "og_3", "") + &line("a", "og_4", two);
    let second = after(&first, &clock, &text);
    assert_eq!(named(&second, "a").0, named(&first, "a").0);
    assert_ne!(named(&second, "a").0, named(&second, "c").0);
    assert!(!admit(&second), "its burst is spent");
    let [(counts, busiest), _] = second.busiest()[..] else {
        panic!("two clients")
    };
    assert_eq!((counts, &*busiest.name), ([0, 1], "a"));
    let third = after(&second, &clock, &line("a", "og_4", ", burst = 3"));
    assert!(admit(&third), "another limit begins anew");
    let none = third.next(None, false, &limits(true), &clock);
    assert_eq!((none.clients.len(), none.is_enabled), (0, false));
}

#[test]
fn a_name_has_a_limit_of_its_own_if_it_sets_one() {
    let clock = Clock::manual();
    for (own, expected) in [
        ("", None),
        (", requests_per_minute = 1", Some((1, 1))),
        (", requests_per_minute = 600", Some((600, 600))),
        (", requests_per_minute = 1, burst = 9", Some((1, 9))),
        (", burst = 90", Some((60, 90))),
        (", burst = 4294967295", Some((60, 60_000_000))),
    ] {
        let file = TokenFile::parse("t", &line("a", "og_1", own)).unwrap();
        for enabled in [true, false] {
            let tokens = ClientTokens::default().next(Some(&file), true, &limits(enabled), &clock);
            let (_, client) = named(&tokens, "a");
            let shape = client.rate.as_ref().map(|rate| rate.shape());
            assert_eq!(shape.map(|(n, burst)| (n, burst.get())), expected, "{own}");
            assert!(tokens.is_enabled && tokens.is_required);
        }
    }
}
