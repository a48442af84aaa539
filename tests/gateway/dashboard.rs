//! What the dashboard may do and no other page: the table stands in `admin::browser`. What a
//! browser makes of the page is checked by `tests/dashboard/run`.

use crate::support::{Client, Gateway, Upstream};

#[tokio::test]
async fn the_dashboard_may_purge_and_reload_and_no_other_page() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let own = format!("http://{}", gateway.admin);
    let mut client = Client::connect(gateway.admin).await;
    let host = gateway.admin.to_string();
    let mark = "x-ordgate-admin: 1\r\n";
    let rows = [
        (format!("{mark}origin: {own}\r\n"), 200),
        (format!("{mark}origin: http://evil.example\r\n"), 403),
    ];
    for (fields, expected) in rows {
        for target in ["/purge?all", "/reload"] {
            let head = format!("POST {target} HTTP/1.1\r\nhost: {host}\r\n");
            client
                .send(format!("{head}{fields}content-length: 0\r\n\r\n"))
                .await;
            let answer = client.answer("POST").await;
            assert_eq!(answer.status, expected, "{target} {fields}");
        }
    }
    assert_eq!(gateway.figure("/chain/purges"), 1, "by the first");
    assert_eq!(gateway.figure("/reload/done"), 1);
    // A browser asks before it sends the field from elsewhere, and gets no permission.
    let fields = [
        ("origin", "http://evil.example"),
        ("access-control-request-method", "POST"),
    ];
    let preflight = client.request("OPTIONS", "/purge", &fields).await;
    assert_eq!(preflight.status, 405);
    assert_eq!(preflight.field("access-control-allow-origin"), None);
}
