//! What control requests answer.

use http::Request;

use super::answer;
use crate::sandbox::{Sandbox, Settings};

/// Requests one after the other, their status, and what their answers contain.
const REQUESTS: &str = r#"
    400 | POST /sandbox/advance?blocks=0 | 1 to 10000
    400 | POST /sandbox/advance?blocks=1&blocks=1 | more than once
    400 | POST /sandbox/reorg?depth=x | depth is \"x\"
    400 | POST /sandbox/fault | from 400 to 599, close, or stall
    400 | POST /sandbox/fault?kind=200 | 400 to 599
    400 | POST /sandbox/fault?kind=stall&delay=-1 | 0 to 600000
    200 | POST /sandbox/fault?kind=429&times=2&path=%2Frunes | "faults":1
    200 | POST /sandbox/fault?kind=503&chance=0.25 | "faults":2
    400 | POST /sandbox/fault?kind=503&chance=2 | 0 to 1
    400 | POST /sandbox/fault?kind=503&probability=1 | allowed: kind, times, path, chance, delay
    400 | POST /sandbox/reorg?depth=2&now | allowed: depth
    400 | GET /sandbox/counts?all=1 | allowed: "
    200 | DELETE /sandbox/fault | "faults":0
    200 | GET /sandbox/journal | "requests":[]
    404 | GET /sandbox/advance | POST /sandbox/advance?blocks=
    404 | GET /sandbox/ | GET /sandbox/examples
    200 | GET /sandbox/counts | busiest_minute
    200 | GET /sandbox/examples | /ordinals/v1/brc-20/tokens/ordi
    200 | POST /sandbox/advance | "height":840010
    200 | POST /sandbox/reorg?depth=2 | "replaced":2
"#;

#[test]
fn answers_name_the_result_or_the_allowed_values() {
    let sandbox = Sandbox::new(Settings {
        blocks: 10,
        ..Settings::default()
    });
    for row in REQUESTS.trim().lines() {
        let [status, request, says] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let (method, target) = request.split_once(' ').unwrap();
        let sent = Request::builder().method(method).uri(target);
        let (sent, ()) = sent.body(()).unwrap().into_parts();
        let answer = answer(&sandbox, &sent);
        let body = str::from_utf8(&answer.body).unwrap();
        assert_eq!(answer.status.as_str(), status.trim(), "{row}: {body}");
        assert!(body.contains(says), "{row}: {body}");
    }
}
