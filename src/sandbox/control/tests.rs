//! What control requests answer.

use super::{Api, answer};
use crate::sandbox::{Sandbox, Settings};

#[test]
fn answers_name_the_result_or_the_allowed_values() {
    let sandbox = Sandbox::new(Settings {
        blocks: 10,
        ..Settings::default()
    });
    for (request, status, says) in [
        ("POST /sandbox/advance?blocks=0", 400, "from 1 to 10000"),
        (
            "POST /sandbox/advance?blocks=1&blocks=1",
            400,
            "allowed is one",
        ),
        ("POST /sandbox/reorg?depth=x", 400, "depth is \\\"x\\\""),
        ("POST /sandbox/fault", 400, "oversize-chunked"),
        ("POST /sandbox/fault?kind=200", 400, "400 to 599"),
        (
            "POST /sandbox/fault?kind=stall&delay=-1",
            400,
            "from 0 to 600000",
        ),
        (
            "POST /sandbox/fault?kind=429&times=2&path=/runes",
            200,
            "\"retry-after\":1",
        ),
        (
            "POST /sandbox/fault?kind=503&chance=0.25",
            200,
            "\"id\":2,\"kind\":\"503\",\"times\":null,\"path\":null,\"chance\":0.25",
        ),
        (
            "POST /sandbox/fault?kind=503&chance=0",
            400,
            "from 0.000001 to 1",
        ),
        (
            "POST /sandbox/fault?kind=503&kind=500",
            400,
            "kind is \\\"503\\\" and \\\"500\\\"; allowed is one",
        ),
        (
            "POST /sandbox/fault?kind=503&path=/a&path=/b",
            400,
            "path is ",
        ),
        (
            "POST /sandbox/fault?kind=503&path=runes",
            400,
            "path is \\\"runes\\\"; allowed is how a path begins",
        ),
        (
            "POST /sandbox/fault?kind=503&path=/sandbox",
            400,
            "and not /sandbox",
        ),
        (
            "POST /sandbox/fault?kind=503&times=1&times=2",
            400,
            "times is \\\"1\\\" and \\\"2\\\"; allowed is one",
        ),
        (
            "POST /sandbox/fault?kind=503&times=4294967295",
            400,
            "from 1 to 4294967294",
        ),
        (
            "POST /sandbox/fault?kind=503&chance=1&chance=0.5",
            400,
            "allowed is one",
        ),
        (
            "POST /sandbox/fault?kind=503&chance=0.0000001",
            400,
            "from 0.000001 to 1",
        ),
        (
            "POST /sandbox/fault?kind=html&delay=1",
            400,
            "stall or drip",
        ),
        (
            "POST /sandbox/fault?kind=503&probability=1",
            400,
            "allowed: kind, times, path, chance, delay",
        ),
        ("POST /sandbox/apply?now=1", 400, "allowed: none"),
        ("GET /sandbox/fault", 200, "\"times\":2"),
        ("DELETE /sandbox/fault?id=1", 200, "\"faults\":1"),
        ("DELETE /sandbox/fault?id=1", 400, "there is no fault 1"),
        ("GET /sandbox/journal", 200, "\"requests\":[]"),
        ("GET /sandbox/journal?last=1001", 400, "from 1 to 1000"),
        ("GET /sandbox/advance", 404, "POST /sandbox/advance"),
        ("GET /sandbox", 404, "GET /sandbox/examples"),
        ("GET /sandbox/counts", 200, "busiest_minute"),
        (
            "GET /sandbox/examples",
            200,
            "/ordinals/v1/brc-20/tokens/ordi",
        ),
        ("POST /sandbox/advance", 200, "\"height\":840010"),
        ("POST /sandbox/reorg?depth=2", 200, "\"replaced\":2"),
        ("POST /sandbox/rollback", 200, "\"height\":840009"),
        ("POST /sandbox/apply", 200, "\"height\":840010"),
        ("POST /sandbox/tokens-ahead", 200, "840010"),
        ("DELETE /sandbox/fault", 200, "\"faults\":0"),
    ] {
        let (method, target) = request.split_once(' ').unwrap();
        let method = method.parse().unwrap();
        let (code, body) = answer(&sandbox, Api::Both, &method, target);
        assert_eq!(code.as_u16(), status, "{request}: {body}");
        assert!(body.to_string().contains(says), "{request}: {body}");
    }
}
