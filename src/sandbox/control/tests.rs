//! What control requests answer.

use http::Request;

use super::answer;
use crate::sandbox::{Sandbox, Settings};

#[test]
fn answers_name_the_result_or_the_allowed_values() {
    let sandbox = Sandbox::new(Settings {
        blocks: 10,
        ..Settings::default()
    });
    for (request, status, says) in [
        ("POST /sandbox/advance?blocks=0", 400, "1 to 10000"),
        (
            "POST /sandbox/advance?blocks=1&blocks=1",
            400,
            "more than once",
        ),
        ("POST /sandbox/reorg?depth=x", 400, "depth is \\\"x\\\""),
        (
            "POST /sandbox/fault",
            400,
            "from 400 to 599, close, or stall",
        ),
        ("POST /sandbox/fault?kind=200", 400, "400 to 599"),
        (
            "POST /sandbox/fault?kind=stall&delay=-1",
            400,
            "0 to 600000",
        ),
        (
            "POST /sandbox/fault?kind=429&times=2&path=%2Frunes",
            200,
            "\"faults\":1",
        ),
        (
            "POST /sandbox/fault?kind=503&chance=0.25",
            200,
            "\"faults\":2",
        ),
        ("POST /sandbox/fault?kind=503&chance=2", 400, "0 to 1"),
        (
            "POST /sandbox/fault?kind=503&probability=1",
            400,
            "allowed: kind, times, path, chance, delay",
        ),
        ("POST /sandbox/reorg?depth=2&now", 400, "allowed: depth"),
        ("GET /sandbox/counts?all=1", 400, "allowed: \""),
        ("DELETE /sandbox/fault", 200, "\"faults\":0"),
        ("GET /sandbox/journal", 200, "\"requests\":[]"),
        ("GET /sandbox/advance", 404, "POST /sandbox/advance?blocks="),
        ("GET /sandbox/", 404, "GET /sandbox/examples"),
        ("GET /sandbox/counts", 200, "busiest_minute"),
        (
            "GET /sandbox/examples",
            200,
            "/ordinals/v1/brc-20/tokens/ordi",
        ),
        ("POST /sandbox/advance", 200, "\"height\":840010"),
        ("POST /sandbox/reorg?depth=2", 200, "\"replaced\":2"),
    ] {
        let (method, target) = request.split_once(' ').unwrap();
        let sent = Request::builder()
            .method(method)
            .uri(target)
            .body(())
            .unwrap();
        let answer = answer(&sandbox, &sent.into_parts().0);
        let body = str::from_utf8(&answer.body).unwrap();
        assert_eq!(answer.status, status, "{request}: {body}");
        assert!(body.contains(says), "{request}: {body}");
    }
}
