//! Lines, and which requests have one.

use http::HeaderValue;
use http::header::{REFERER, USER_AGENT};

use super::*;
use crate::identify::Client;

fn log(sample: u64) -> AccessLog {
    let settings = Settings {
        format: AccessFormat::Combined,
        sample: sample.try_into().unwrap(),
    };
    AccessLog::new(&settings).unwrap()
}

#[test]
fn only_usual_answers_from_memory_and_refusals_are_sampled() {
    let stale = Outcome::StaleIfError {
        ttl: -1,
        reason: Reason::OverBudget,
    };
    let answer = RequestKind::Answer;
    let refusal = RequestKind::Refusal(Reason::NoRoute);
    // kind, status, milliseconds, whether sampling may leave it out
    for (kind, status, millis, expected) in [
        (answer(Outcome::hit(1)), 200, 1, true),
        (answer(Outcome::hit(1)), 304, 999, true),
        (answer(Outcome::hit(1)), 200, 1000, false),
        (answer(Outcome::hit(1)), 404, 1, true),
        (RequestKind::Document, 200, 1, true),
        (RequestKind::Preflight, 204, 1, true),
        (
            answer(Outcome::Hit {
                ttl: 1,
                from: HitSource::Disk,
            }),
            200,
            1,
            false,
        ),
        (answer(Outcome::hit(-1)), 200, 1, false),
        (answer(stale), 200, 1, false),
        (refusal, 404, 1, true),
        (refusal, 404, 1000, false),
        (refusal, 503, 1, false),
    ] {
        let (status, took) = (
            StatusCode::from_u16(status).unwrap(),
            Duration::from_millis(millis),
        );
        let sampled = log(3);
        let found = [(); 4].map(|()| sampled.wants(kind, status, took));
        let expected = [true, !expected, !expected, true];
        assert_eq!(found, expected, "{kind:?} {status} {millis}");
        assert!(log(1).wants(kind, status, took));
    }
}

#[test]
fn lines_in_the_combined_format() {
    let fields = HeaderMap::new();
    let with_fields = HeaderMap::from_iter([
        (REFERER, HeaderValue::from_static("https://a.example/\"x\"")),
        (
            USER_AGENT,
            HeaderValue::from_bytes("curl/8 \\\tä\u{202e}".as_bytes()).unwrap(),
        ),
    ]);
    let (target, path) = ("/a?b=c".parse().unwrap(), "/a".parse().unwrap());
    let entry = LogEntry {
        peer: [10, 0, 0, 9].into(),
        client: ClientLabel {
            client: IpAddr::from([192, 0, 2, 7]).into(),
            name: None,
        },
        method: &Method::GET,
        version: Version::HTTP_11,
        uri: &target,
        fields: &fields,
        route: None,
        is_plain: false,
        status: 200,
        bytes: 0,
        at: SystemTime::UNIX_EPOCH + Duration::from_secs(971_186_136),
        duration: Duration::from_millis(1),
        kind: RequestKind::Answer(Outcome::hit(1)),
        upstream: None,
        request_id: RequestId::new(1),
    };
    assert_eq!(
        combined::line(&entry),
        "192.0.2.7 - - [10/Oct/2000:13:55:36 +0000] \"GET /a?b=c HTTP/1.1\" 200 - \"-\" \"-\"\n",
    );
    let of_plain_route = LogEntry {
        bytes: 12,
        version: Version::HTTP_2,
        client: ClientLabel {
            client: "2001:db8::1".parse::<IpAddr>().unwrap().into(),
            name: None,
        },
        is_plain: true,
        ..entry
    };
    assert_eq!(
        combined::line(&of_plain_route),
        "2001:db8:: - - [10/Oct/2000:13:55:36 +0000] \"GET /a HTTP/2.0\" 200 12 \"-\" \"-\"\n",
    );
    let with_token = LogEntry {
        client: ClientLabel {
            client: Client::Token(3),
            name: Some("shop"),
        },
        uri: &path,
        fields: &with_fields,
        bytes: 0,
        version: Version::HTTP_10,
        ..of_plain_route
    };
    assert_eq!(
        combined::line(&with_token),
        "10.0.0.9 - shop [10/Oct/2000:13:55:36 +0000] \"GET /a HTTP/1.0\" 200 - \"https://a.example/\\\"x\\\"\" \"curl/8 \\\\\\x09\\xc3\\xa4\\xe2\\x80\\xae\"\n",
    );
}
