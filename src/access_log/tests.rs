//! Lines, and which requests have one.

use super::*;
use http::HeaderName;

const TOKEN_TEXT: &str = "og_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV";

fn head(target: &str, fields: &[(&'static str, &str)]) -> LoggedHead {
    let fields = fields.iter().map(|(name, value)| {
        let value = HeaderValue::from_str(value).unwrap();
        (HeaderName::from_static(name), value)
    });
    let log = log(AccessFormat::Combined, 1);
    log.head(&Method::GET, &target.parse().unwrap(), &fields.collect())
}

fn log(format: AccessFormat, sample: u64) -> AccessLog {
    let settings = Settings {
        enabled: true,
        format,
        sample,
        slow: Duration::from_secs(1),
        fields: Field::ALL.to_vec(),
    };
    AccessLog::new(&settings).unwrap()
}

fn entry(head: &LoggedHead) -> LogEntry<'_> {
    LogEntry {
        peer: [10, 0, 0, 9].into(),
        client: ClientLabel {
            client: IpAddr::from([192, 0, 2, 7]).into(),
            name: None,
        },
        method: &Method::GET,
        version: Version::HTTP_11,
        head,
        key: None,
        route: None,
        is_plain: false,
        status: 200,
        bytes: 0,
        at: SystemTime::UNIX_EPOCH + Duration::from_secs(971_186_136),
        duration: Duration::from_millis(1),
        kind: RequestKind::Answer(Outcome::Hit { ttl: 1 }),
        upstream: None,
        request_id: RequestId::new(1),
    }
}

#[test]
fn only_usual_answers_from_memory_are_sampled() {
    let stale = Outcome::StaleIfError {
        ttl: -1,
        reason: Reason::OverBudget,
    };
    let hit = RequestKind::Answer(Outcome::Hit { ttl: 1 });
    // kind, status, milliseconds, whether sampling may leave it out
    for (kind, status, millis, expected) in [
        (hit, 200, 1, true),
        (hit, 304, 999, true),
        (hit, 200, 1000, false),
        (hit, 404, 1, false),
        (RequestKind::Document, 200, 1, true),
        (RequestKind::Preflight, 204, 1, true),
        (
            RequestKind::Answer(Outcome::FromDisk { ttl: 1 }),
            200,
            1,
            false,
        ),
        (RequestKind::Answer(Outcome::Hit { ttl: -1 }), 200, 1, false),
        (RequestKind::Answer(stale), 200, 1, false),
        (RequestKind::Refusal(Reason::NoRoute), 404, 1, false),
    ] {
        let (status, took) = (
            StatusCode::from_u16(status).unwrap(),
            Duration::from_millis(millis),
        );
        let wants =
            |log: &AccessLog| log.wants(kind, status, took, Client::V4(7), Moment::default());
        let (all, sampled) = (log(AccessFormat::Log, 1), log(AccessFormat::Log, 3));
        assert_eq!(wants(&all), LineDecision::Line);
        let found: Vec<_> = (0..4).map(|_| wants(&sampled)).collect();
        let second = match expected {
            true => LineDecision::No,
            false => LineDecision::Line,
        };
        let expected = [LineDecision::Line, second, second, LineDecision::Line];
        assert_eq!(found, expected, "{kind:?} {status} {millis}");
    }
}

#[test]
fn with_sampling_quick_refusals_are_bounded_and_failures_and_slow_requests_are_not() {
    // status, milliseconds, sample, lines of 1000 requests
    for (status, millis, sample, expected) in [
        (404, 0, 1, 1000),
        (404, 0, 2, 20),
        (404, 999, 2, 20),
        (404, 1000, 2, 1000),
        (500, 0, 2, 1000),
        (503, 0, 2, 1000),
    ] {
        let log = log(AccessFormat::Log, sample);
        let status = StatusCode::from_u16(status).unwrap();
        let count = |client| {
            let wants = |_: &u32| {
                let refusal = RequestKind::Refusal(Reason::NoRoute);
                let took = Duration::from_millis(millis);
                let client = Client::V4(client);
                log.wants(refusal, status, took, client, Moment::default()) == LineDecision::Line
            };
            (0..1000).filter(wants).count()
        };
        assert_eq!(count(66), expected, "{status} {millis} {sample}");
        assert_eq!(count(7), expected, "another client");
    }
}

#[test]
fn lines_in_the_combined_format() {
    let plain = head("/a?b=c", &[]);
    let with_fields = head(
        "/a",
        &[
            ("referer", "https://a.example/\"x\""),
            ("user-agent", "curl/8 \\\t"),
        ],
    );
    let rows = [
        (
            entry(&plain),
            true,
            "192.0.2.7 - - [10/Oct/2000:13:55:36 +0000] \"GET /a?b=c HTTP/1.1\" 200 - \"-\" \"-\"\n",
        ),
        (
            LogEntry {
                bytes: 12,
                version: Version::HTTP_2,
                client: ClientLabel {
                    client: "2001:db8::1".parse::<IpAddr>().unwrap().into(),
                    name: None,
                },
                ..entry(&plain)
            },
            false,
            "2001:db8:: - - [10/Oct/2000:13:55:36 +0000] \"GET /a HTTP/2.0\" 200 12 \"-\" \"-\"\n",
        ),
        (
            LogEntry {
                client: ClientLabel {
                    client: Client::Token(3),
                    name: Some("shop"),
                },
                ..entry(&with_fields)
            },
            true,
            "10.0.0.9 - shop [10/Oct/2000:13:55:36 +0000] \"GET /a HTTP/1.1\" 200 - \"https://a.example/\\\"x\\\"\" \"curl/8 \\\\\\x09\"\n",
        ),
    ];
    for (entry, with_query, expected) in rows {
        let fields: &[Field] = if with_query { &[Field::Query] } else { &[] };
        assert_eq!(combined::line(&entry, fields), expected);
    }
    let mut line = String::new();
    combined::escaped(&mut line, "a\u{85}\u{2028}\u{202e}ä");
    assert_eq!(line, "a\\xc2\\x85\\xe2\\x80\\xa8\\xe2\\x80\\xaeä");
    let cut = format!("GET /{}\\xc2", "a".repeat(250));
    for (refused, expected) in [
        (None, "] \"-\" 200 "),
        (Some("GET /a\\\" HTTP/9"), "] \"GET /a\\\" HTTP/9\" 200 "),
        (Some(&*cut), "aaa\" 200 "),
    ] {
        let malformed = LoggedHead {
            is_refused: true,
            refused_line: refused.map(Box::from),
            target: None,
            ..head("/", &[])
        };
        let line = combined::line(&entry(&malformed), &[Field::Query]);
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn parts_are_bounded_and_have_no_client_token() {
    let short = &TOKEN_TEXT[..TOKEN_TEXT.len() - 1];
    for (part, expected) in [
        ("a=b".to_owned(), "a=b".to_owned()),
        (
            format!("k={TOKEN_TEXT}&x=1"),
            "k=og_[redacted]&x=1".to_owned(),
        ),
        (
            format!("{TOKEN_TEXT}{TOKEN_TEXT}"),
            "og_[redacted]og_[redacted]".to_owned(),
        ),
        (short.to_owned(), short.to_owned()),
        ("x".repeat(5000), "x".repeat(MAX_PART)),
        (
            format!("{}é", "x".repeat(MAX_PART - 1)),
            "x".repeat(MAX_PART - 1),
        ),
    ] {
        assert_eq!(shown(&part), expected);
    }
}
