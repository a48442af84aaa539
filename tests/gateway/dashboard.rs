//! The dashboard and `/history` on the admin listener. What a browser makes of the
//! page is checked by `tests/dashboard/run`.

use crate::support::{Client, Gateway, Setup, Upstream};

#[tokio::test]
async fn the_files_need_no_token_and_the_data_do() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).token("secret").start();
    let mut client = Client::connect(gateway.admin).await;
    let right = ("authorization", "Bearer secret");
    for path in ["/", "/dashboard/main.js", "/dashboard/charts.js"] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    for path in [
        "/status",
        "/history",
        "/explain?url=/",
        "/dashboard",
        "/dashboard/",
    ] {
        assert_eq!(client.get(path).await.status, 401, "{path}");
    }
    for path in ["/status", "/history"] {
        let answer = client.request("GET", path, &[right]).await;
        assert_eq!(answer.status, 200, "{path}");
    }
    // Another site's name that resolves to this address gets nothing.
    client
        .send("GET / HTTP/1.1\r\nhost: rebound.example\r\n\r\n")
        .await;
    assert_eq!(client.answer("GET").await.status, 421);
}

#[tokio::test]
async fn the_dashboard_may_purge_and_reload_and_no_other_page() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let own = format!("http://{}", gateway.admin);
    let mut client = Client::connect(gateway.admin).await;
    let host = gateway.admin.to_string();
    let mark = "x-ordgate-admin: 1\r\n";
    #[rustfmt::skip]
    let rows = [
        (format!("{mark}origin: {own}\r\nsec-fetch-site: same-origin\r\n"), 200),
        (format!("{mark}origin: {own}\r\n"), 200),
        (format!("origin: {own}\r\nsec-fetch-site: same-origin\r\n"), 403),
        (format!("{mark}origin: http://evil.example\r\n"), 403),
        (format!("{mark}origin: {own}\r\nsec-fetch-site: cross-site\r\n"), 403),
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
    assert_eq!(gateway.figure("/chain/purges"), 2, "by the first two");
    assert_eq!(gateway.figure("/reload/done"), 2);
    // A browser asks before it sends the field from elsewhere, and gets no permission.
    let fields = [
        ("origin", "http://evil.example"),
        ("access-control-request-method", "POST"),
    ];
    let preflight = client.request("OPTIONS", "/purge", &fields).await;
    assert_eq!(preflight.status, 405);
    assert_eq!(preflight.field("access-control-allow-origin"), None);
}
